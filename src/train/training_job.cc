#include "train/training_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "adapter/adapter_file.h"
#include "base/atomic_file.h"
#include "base/error.h"
#include "base/file.h"
#include "base/random.h"
#include "jobs/settings.h"
#include "ops/memory.h"
#include "ops/within_memory.h"
#include "schedule/adapter_shape.h"
#include "schedule/successive_halving.h"
#include "train/adapter_folder.h"
#include "train/checkpoint.h"
#include "train/folder_checksums.h"
#include "train/learning_rate.h"

namespace cotune {

namespace fs = std::filesystem;

TrainingJob::TrainingJob(int32_t index, JobSpec spec, JobData data, const ModelConfig& config, at::ScalarType compute,
                         at::Device device, std::string base_model, fs::path folder)
    : index_(index),
      spec_(std::move(spec)),
      data_(std::move(data)),
      base_model_(std::move(base_model)),
      folder_(std::move(folder)),
      config_(config),
      order_(batch_order(spec_, data_.train)) {
  setup_.spec = spec_.adapter;
  setup_.modules = resolve_target_modules(spec_, config.layer_count);
  setup_.seed = spec_.train.seed;
  setup_.optimizer = spec_.train.optimizer;
  setup_.momentum = spec_.train.momentum;
  setup_.compute = compute;
  setup_.device = device;
  total_steps_ = cotune::total_steps(order_.order(), spec_.train.steps, spec_.train.epochs);
  rungs_ = rung_steps(spec_.sweep.halving, total_steps_);
  if (!spec_.deadline.empty()) deadline_ = parse_deadline(spec_.deadline).value();
  vocabulary_size_ = config.vocabulary_size;
  for (int64_t i = 0; i < data_.train.size(); ++i) longest_row_ = std::max(longest_row_, data_.train.length(i));
  data_.train.drop_pages();
  for (int64_t i = 0; i < data_.eval.size(); ++i) longest_eval_row_ = std::max(longest_eval_row_, data_.eval.length(i));
  data_.eval.drop_pages();
  state_.data_hash = content_hash(data_);
  state_.spec_hash = settings_hash(spec_);
}

void TrainingJob::load() {
  std::unique_ptr<Adapter> adapter = make_adapter(config_, setup_);
  if (has_checkpoint_) {
    const std::optional<fs::path> newest = latest_checkpoint(folder_);
    if (!newest) throw_user_error("{}: the job's checkpoints are gone: it cannot go on from step {}", folder_.string(), state_.step);
    COTUNE_CHECK(load_checkpoint(*newest, *adapter).step == state_.step, "{}: is not of step {}", newest->string(), state_.step);
  } else if (!spec_.adapter.init_from.empty()) {
    const fs::path folder = find_adapter_folder(spec_.adapter.init_from);
    if (!initial_adapter_.empty() && adapter_checksum(folder) != initial_adapter_) {
      throw_user_error("{}: is no longer the adapter that the job was to start from (init_from): its files have changed since the run began",
                       folder.string());
    }
    check_adapter_checksums(folder);
    load_adapter(*adapter, folder);
  }
  adapter_ = std::move(adapter);
  selection_passes_ = adapter_->selection_passes();
  selection_pass_ = adapter_->finished_selection_passes();
  selection_batch_ = 0;
}

void TrainingJob::unload() {
  adapter_.reset();
  batches_.clear();
}

void TrainingJob::resume() {
  std::optional<fs::path> newest;
  JobState loaded;
  try {
    newest = latest_checkpoint(folder_);
    if (newest) loaded = read_checkpoint_state(*newest);
  } catch (const UserError& error) {
    throw UserError(error.what() + way_out_of_damage(folder_));
  }
  check_checkpoints(folder_);
  if (!newest) return;
  if (loaded.spec_hash != state_.spec_hash) {
    throw_user_error("{}: belongs to job `{}` with other settings: resume with the jobs file of that run, or choose "
                     "another output_dir", newest->string(), spec_.name);
  }
  if (loaded.data_hash != state_.data_hash) {
    throw_user_error("{}: job `{}` was trained on other data than {} holds now", newest->string(), spec_.name,
                     names_of_train_files(spec_.data));
  }
  state_ = loaded;
  saved_step_ = state_.step;
  state_is_saved_ = true;
  has_checkpoint_ = true;
}

Batch TrainingJob::make_batch(const Dataset& dataset, const std::vector<int64_t>& examples, int64_t step) const {
  Batch batch{step, {}};
  batch.rows.reserve(examples.size());
  for (const int64_t example : examples) {
    const std::span<const int32_t> tokens = dataset.tokens(example);
    const std::span<const uint8_t> learned = dataset.learned(example);
    for (const int32_t token : tokens) {
      if (token >= 0 && token < vocabulary_size_) continue;
      throw_user_error("{}:{}: holds token {}, but the model's vocabulary has {} tokens", dataset.source(example),
                       dataset.line(example), token, vocabulary_size_);
    }
    batch.rows.push_back({{tokens.begin(), tokens.end()}, {learned.begin(), learned.end()}, static_cast<uint64_t>(example)});
  }
  dataset.drop_pages();
  return batch;
}

JobRound TrainingJob::next_round(int64_t ahead) {
  const bool selecting = selection_pass_ < selection_passes_;
  const int64_t step = selecting ? selection_batch_ : state_.step + ahead;
  if (selecting && selection_batch_ == 0) adapter_->begin_selection(selection_pass_);
  if (ahead == 0) batches_.clear();
  Batch& batch = batches_[step] = make_batch(data_.train, order_.batch(step), step);
  const TrainSpec& train = spec_.train;
  JobRound round;
  round.job = index_;
  round.adapter = adapter_.get();
  round.batch = &batch;
  round.purpose = selecting ? RoundPurpose::select : RoundPurpose::train;
  round.selection_pass = selecting ? selection_pass_ : 0;
  round.dropout_key = mix_key(mix64(train.seed), static_cast<uint64_t>(step));
  round.optimizer = {train.optimizer, step + 1,     learning_rate(train, step, total_steps_), train.weight_decay,
                     train.beta1,     train.beta2, train.epsilon, train.momentum, train.max_grad_norm};
  return round;
}

bool TrainingJob::finish_round(const JobRound& round) {
  loss_is_finite_ = std::isfinite(round.loss_sum);
  if (round.purpose == RoundPurpose::select) {
    if (!loss_is_finite_) {
      state_.status = JobStatus::failed;
      state_.failure = "the loss is not finite while entries are selected";
      return false;
    }
    const int64_t batches = std::min(spec_.adapter.selection_batches, total_steps_);
    if (++selection_batch_ < batches) return false;
    adapter_->end_selection(selection_pass_);
    ++selection_pass_;
    selection_batch_ = 0;
    saved_step_ = -1;
    return false;
  }
  if (!round.stepped) {
    state_.status = JobStatus::failed;
    state_.failure = round.failure;
    return false;
  }
  ++state_.step;
  state_.epoch = static_cast<double>(state_.step) / static_cast<double>(steps_per_epoch());
  for (const BatchRow& row : round.batch->rows) state_.trained_tokens += static_cast<int64_t>(row.tokens.size());
  state_.labelled_tokens += round.labelled_tokens;
  state_.last_loss = round.loss();
  return true;
}

HeldOutBlock TrainingJob::held_out_block(int64_t first_row, const HeldOutBlock& most) const {
  HeldOutBlock block;
  for (int64_t row = first_row; row < data_.eval.size() && block.rows < most.rows; ++row) {
    const int64_t tokens = data_.eval.length(row);
    if (block.rows > 0 && block.tokens + tokens > most.tokens) break;
    block.tokens += tokens;
    ++block.rows;
  }
  data_.eval.drop_pages();
  return block;
}

JobRound TrainingJob::evaluation_round(EvaluationOf of, int64_t first_row, int64_t row_count) {
  std::vector<int64_t> examples(static_cast<size_t>(row_count));
  std::iota(examples.begin(), examples.end(), first_row);
  batches_.clear();
  const Batch& batch = batches_[state_.step] = make_batch(data_.eval, examples, state_.step);
  JobRound round;
  round.job = index_;
  round.adapter = of == EvaluationOf::start && starts_as_base_model() ? nullptr : adapter_.get();
  round.batch = &batch;
  round.purpose = RoundPurpose::evaluate;
  return round;
}

bool TrainingJob::finish_evaluation(EvaluationOf of, const HeldOutResult& result) {
  const int64_t step = of == EvaluationOf::start ? 0 : state_.step;
  if (result.emulated) {
    state_.last_eval_step = step;
    return false;
  }
  const bool is_finite = std::isfinite(result.loss_sum), of_base_model = of == EvaluationOf::start && starts_as_base_model();
  if (!of_base_model) loss_is_finite_ = is_finite;  // the base model's says nothing against a checkpoint
  if (!is_finite) {
    state_.status = JobStatus::failed;
    state_.failure = of_base_model ? "the held-out loss of the base model is not finite" : "the held-out loss is not finite";
    return false;
  }
  state_.last_eval_loss = result.loss();
  state_.last_eval_accuracy = result.accuracy();
  state_.last_eval_step = step;
  state_is_saved_ = false;
  if (of == EvaluationOf::start) {
    state_.start_eval_loss = result.loss();
    state_.start_eval_accuracy = result.accuracy();
    return false;
  }
  const auto lower_by = [&](double margin) {
    return state_.best_step < 0 || result.loss() < state_.best_eval_loss - margin;
  };
  const bool best = lower_by(0);
  state_.evaluations_without_improvement =
      lower_by(spec_.train.early_stopping_threshold) ? 0 : state_.evaluations_without_improvement + 1;
  if (best) {
    state_.best_eval_loss = result.loss();
    state_.best_eval_accuracy = result.accuracy();
    state_.best_step = state_.step;
  }
  return best;
}

int64_t TrainingJob::steps_at_once(int64_t ahead) const {
  if (selection_pass_ < selection_passes_) return 1;
  const int64_t step = state_.step + ahead;
  int64_t steps = std::max<int64_t>(1, total_steps_ - step);
  const auto until = [&](int64_t every) {
    if (every > 0) steps = std::min(steps, every - step % every);
  };
  if (!data_.eval.empty()) until(spec_.train.eval_steps);
  if (step == 0 && !data_.eval.empty() && starts_as_base_model()) steps = 1;
  until(spec_.train.save_steps);
  const auto rung = std::upper_bound(rungs_.begin(), rungs_.end(), step);
  if (rung != rungs_.end()) steps = std::min(steps, *rung - step);
  return steps;
}

bool TrainingJob::evaluation_due(EvaluationOf of) const {
  if (data_.eval.empty()) return false;
  if (of == EvaluationOf::start) return state_.last_eval_step < 0 && (starts_as_base_model() ? state_.step > 0 : state_.step == 0);
  if (state_.step == 0 || state_.last_eval_step == state_.step || evaluation_due(EvaluationOf::start)) return false;
  const bool is_rung = std::binary_search(rungs_.begin(), rungs_.end(), state_.step);
  return done() || is_rung || (spec_.train.eval_steps > 0 && state_.step % spec_.train.eval_steps == 0);
}

bool TrainingJob::checkpoint_due() const {
  if (spec_.train.save_steps == 0) return false;
  if (state_.step == 0) return selection_pass_ > 0 && selection_batch_ == 0;  // a pass has ended
  return state_.step % spec_.train.save_steps == 0;
}

bool TrainingJob::stops_early() const {
  const int64_t patience = spec_.train.early_stopping_patience;
  return !state_.stopped.empty() || (patience > 0 && state_.evaluations_without_improvement >= patience);
}

void TrainingJob::checkpoint() {
  const bool best = state_.step > 0 && state_.best_step == state_.step && keeps_best(spec_.train);
  save_checkpoint(folder_, *adapter_, state_, base_model_, best);
  saved_step_ = state_.step;
  state_is_saved_ = true;
  has_checkpoint_ = true;
}

bool TrainingJob::withdraw_bad_checkpoint() {
  const bool holds_it = saved_step_ == state_.step && state_.last_eval_step != state_.step;
  return loss_is_finite_ || !holds_it || withdraw_latest_checkpoint(folder_);
}

JobResult TrainingJob::result() const {
  JobResult result{state_.step, state_.last_eval_step, state_.last_eval_loss, state_.last_eval_accuracy};
  if (leaves_best()) result = {state_.best_step, state_.best_step, state_.best_eval_loss, state_.best_eval_accuracy};
  result.starts_better = result.eval_step > 0 && state_.start_eval_loss <= result.eval_loss;
  return result;
}

void TrainingJob::leave_adapter(const std::string& effective_configuration) {
  const bool goes_back = leaves_best() && state_.best_step != state_.step;
  if (!goes_back && is_loaded()) {
    write_adapter(std::nullopt, effective_configuration);
    return;
  }
  const std::optional<fs::path> checkpoint = goes_back ? best_checkpoint(folder_) : latest_checkpoint(folder_);
  const int64_t step = goes_back ? state_.best_step : state_.step;
  if (!checkpoint || read_checkpoint_state(*checkpoint).step != step) {
    throw_user_error("{}: does not name the checkpoint of step {}, the job's {}",
                     (folder_ / (goes_back ? "best" : "latest")).string(), step, goes_back ? "best" : "last");
  }
  write_adapter(checkpoint, effective_configuration);
  adapter_.reset();
  try {
    adapter_ = within_memory([&] {
      std::unique_ptr<Adapter> adapter = make_adapter(config_, setup_);
      load_adapter(*adapter, *checkpoint);
      return adapter;
    });
  } catch (const MemoryLimitExceeded&) {
    // Nothing is left to be done with it but to look at it.
  }
}

void TrainingJob::write_adapter(const std::optional<fs::path>& checkpoint, const std::string& effective_configuration) const {
  const fs::path target = folder_ / "adapter";
  std::error_code error;
  fs::create_directories(target, error);
  if (error) throw SystemError(fmt::format("{}: cannot create: {}", target.string(), error.message()));
  write_file_atomically(target / "cotune.yaml", effective_configuration);
  // adapter_config.json last: it is what makes the folder an adapter.
  if (checkpoint) {
    for (const char* file : {adapter_model_file, adapter_config_file}) copy_file_atomically(*checkpoint / file, target / file);
    return;
  }
  AtomicFile values(target / adapter_model_file);
  write_adapter_model(*adapter_, [&](std::string_view bytes) { values.append(bytes); });
  values.commit();
  write_file_atomically(target / adapter_config_file, adapter_config_bytes(*adapter_, base_model_));
}

JobFootprint TrainingJob::footprint() const {
  JobFootprint footprint;
  footprint.job = index_;
  footprint.adapters = adapter_shapes(index_, spec_.adapter, setup_.modules, config_);
  const bool adamw = spec_.train.optimizer == OptimizerKind::adamw;
  footprint.moment_count = adamw ? 2 : (spec_.train.momentum != 0 ? 1 : 0);
  footprint.row_count = std::min(spec_.train.batch_size, data_.train.size());
  footprint.longest_row = longest_row_;
  footprint.eval_row_count = data_.eval.size();
  footprint.longest_eval_row = longest_eval_row_;
  return footprint;
}

JobShape TrainingJob::shape() const {
  const JobFootprint own = footprint();
  std::vector<int64_t> lengths;
  for (const int64_t example : epoch_order(order_.order(), 0)) lengths.push_back(data_.train.length(example));
  data_.train.drop_pages();
  return {.name = spec_.name,
          .batch_size = own.row_count,
          .lengths = histogram_of(lengths),
          .adapters = own.adapters,
          .moment_count = own.moment_count};
}

std::vector<JobShape> shapes_of(std::span<const std::unique_ptr<TrainingJob>> jobs) {
  std::vector<JobShape> shapes;
  for (const auto& job : jobs) shapes.push_back(job->shape());
  return shapes;
}

}  // namespace cotune
