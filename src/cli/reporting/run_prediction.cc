#include "cli/reporting/run_prediction.h"

#include <algorithm>

#include "engine/labelled_rows.h"
#include "engine/memory_facts.h"
#include "jobs/adapter_methods.h"
#include "ops/memory.h"
#include "schedule/adapter_shape.h"
#include "schedule/memory/resident_memory.h"
#include "schedule/memory/weight_memory.h"
#include "schedule/operator_cost.h"
#include "schedule/pipeline/alive_tokens.h"
#include "train/training_job.h"

namespace cotune {
namespace {

constexpr std::array resident_kinds = {MemoryKind::adapters, MemoryKind::gradients, MemoryKind::optimizer};

int64_t resident_bytes_of(const MemoryUsage& usage) {
  int64_t bytes = 0;
  for (const MemoryKind kind : resident_kinds) bytes += usage[kind];
  return bytes;
}

/// resident_bytes without what a selection takes for a while: the gradients that stay.
MemoryEstimate between_rounds(const ModelConfig& config, const JobFootprint& job, const MemoryFacts& facts) {
  MemoryEstimate estimate = resident_bytes(config, job, facts);
  estimate.gradients = 0;
  for (const AdapterShape& adapter : job.adapters) {
    estimate.gradients += parameter_count(config, adapter) * accumulation_bytes(facts.element_size);
  }
  return estimate;
}

}  // namespace

RunPrediction::RunPrediction(const Backbone& backbone, const MeasuredTimes* times, int64_t process_bytes, int64_t ranks)
    : backbone_(backbone), times_(ranks == 1 ? times : nullptr), process_bytes_(process_bytes) {
  facts_ = memory_facts(backbone.compute(), backbone.device());
  knows_memory_ = backbone.device().is_cpu() && facts_.packed && ranks == 1;
  if (!knows_memory_) return;
  const MemoryUsage usage = memory_usage();
  // f32 weights in parts take as many as their values need, which shapes do not say.
  const int64_t weights = facts_.parts > 0 ? backbone.weight_bytes() : predict_weight_bytes(backbone.config(), facts_, backbone.positions());
  bytes_["weights"] = {weights, usage[MemoryKind::weights]};
  resident_before_ = resident_bytes_of(usage);
}

void RunPrediction::keep(const char* kind, int64_t predicted) {
  bytes_[kind].predicted = std::max(bytes_[kind].predicted, predicted);
}

void RunPrediction::on_job_started(const TrainingJob& job) {
  Job& live = live_[job.index()];
  live = {job.spec().name, job.footprint(), {}, selects_entries(job.spec().adapter.method), job.state().step > 0};
  if (!knows_memory_) return;
  live.resident = between_rounds(backbone_.config(), live.footprint, facts_);
  const int64_t resident = resident_bytes_of(memory_usage());
  PredictedBytes& bytes = job_bytes_[live.name];
  bytes.predicted = live.resident.total();
  if (!jobs_left_ && !selects(live)) bytes.measured = resident - resident_before_;
  resident_before_ = resident;
}

std::vector<AdapterShape> RunPrediction::adapters_of(const StepPlan& plan) const {
  std::vector<AdapterShape> adapters;
  for (const BatchShape& batch : plan.batches) {
    const std::vector<AdapterShape>& own = live_.at(batch.job).footprint.adapters;
    adapters.insert(adapters.end(), own.begin(), own.end());
  }
  return adapters;
}

bool RunPrediction::selects(const Job& job) const { return job.is_diff && !job.stepped; }

void RunPrediction::predict_memory_of(const PlannedStep& step) {
  const std::optional<StepMemory> memory = step_memory(backbone_.config(), step, facts_);
  if (!memory) {
    knows_memory_ = false;
    return;
  }
  keep("activations", memory->activations);
  keep("chain_kv", memory->chain_kv);
  keep("workspace", memory->workspace);
  keep("logits", memory->logits);
  int64_t resident = 0;
  for (const auto& [index, job] : live_) {
    // A selection holds dense gradients, and nothing else yet.
    resident += selects(job) ? resident_bytes(backbone_.config(), job.footprint, facts_).gradients : job.resident.total();
  }
  most_together_ = std::max(most_together_, resident + facts_.with_holes(memory->together));
}

void RunPrediction::on_plan(const StepPlan& plan, std::span<const JobRound> rounds) {
  std::set<int32_t> jobs;
  for (const BatchShape& batch : plan.batches) jobs.insert(batch.job);
  const int64_t tokens = alive_at_most(plan).alive_tokens;
  const bool may_be_most = jobs != predicted_jobs_ || tokens > predicted_tokens_;
  if (times_ != nullptr || (knows_memory_ && may_be_most)) {
    const PlannedStep step{plan, labelled_rows(plan, rounds), adapters_of(plan)};
    if (knows_memory_) predict_memory_of(step);
    // A selection's dense gradients are no operator of the list.
    const bool selecting = std::any_of(rounds.begin(), rounds.end(),
                                       [](const JobRound& round) { return round.purpose == RoundPurpose::select; });
    if (times_ != nullptr && !selecting) pending_ = times_->step_seconds(backbone_.config(), step);
    predicted_jobs_ = std::move(jobs);
    predicted_tokens_ = std::max(predicted_tokens_, tokens);
  }
  round_stepped_ = false;
  round_begin_ = std::chrono::steady_clock::now();
}

void RunPrediction::on_step(const StepEvent& event) {
  live_.at(event.job->index()).stepped = true;
  if (round_stepped_) return;
  round_stepped_ = true;  // the first of the round's events
  if (!pending_) return;
  const std::chrono::duration<double> measured = std::chrono::steady_clock::now() - round_begin_;
  rounds_.push_back({pending_->total, measured.count()});
  for (const auto& [key, seconds] : pending_->by_operator) operator_seconds_[key] += seconds;
  pending_.reset();
}

void RunPrediction::on_round_ended(double) {
  if (!knows_memory_) return;
  if (std::any_of(live_.begin(), live_.end(), [&](const auto& job) { return selects(job.second); })) return;
  const MemoryUsage usage = memory_usage();
  MemoryEstimate predicted;
  int64_t rest = resident_bytes_of(usage);
  std::vector<PredictedBytes*> unknown;  // a job that selected has what the others leave
  for (const auto& [index, job] : live_) {
    predicted.adapters += job.resident.adapters;
    predicted.gradients += job.resident.gradients;
    predicted.optimizer += job.resident.optimizer;
    PredictedBytes& bytes = job_bytes_[job.name];
    rest -= bytes.measured;
    if (bytes.measured == 0) unknown.push_back(&bytes);
  }
  if (unknown.size() == 1) unknown.front()->measured = rest;
  const std::array of_kinds = {predicted.adapters, predicted.gradients, predicted.optimizer};
  for (size_t i = 0; i < resident_kinds.size(); ++i) {
    PredictedBytes& bytes = bytes_[to_string(resident_kinds[i])];
    bytes.predicted = std::max(bytes.predicted, of_kinds[i]);
    bytes.measured = std::max(bytes.measured, usage[resident_kinds[i]]);
  }
}

void RunPrediction::on_job_ended(const TrainingJob& job) { leave(job); }

void RunPrediction::leave(const TrainingJob& job) {
  if (live_.erase(job.index()) > 0) jobs_left_ = true;
}

void RunPrediction::on_run_ended(const RunSummary& summary) {
  for (const MemoryKind kind : {MemoryKind::activations, MemoryKind::chain_kv, MemoryKind::workspace, MemoryKind::logits}) {
    if (knows_memory_) bytes_[to_string(kind)].measured = summary.memory.peak_bytes[static_cast<size_t>(kind)];
  }
  if (knows_memory_ && process_bytes_ > 0) {
    process_ = {process_bytes_ + bytes_["weights"].predicted + most_together_, summary.peak_rss_bytes};
  }
}

double RunPrediction::predicted_over_measured() const {
  double predicted = 0, measured = 0;
  for (size_t i = 1; i < rounds_.size(); ++i) {
    predicted += rounds_[i].predicted;
    measured += rounds_[i].measured;
  }
  return measured > 0 ? predicted / measured : 0;
}

}  // namespace cotune
