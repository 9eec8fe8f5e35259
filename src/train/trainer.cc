#include "train/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "base/error.h"
#include "engine/memory_facts.h"
#include "ops/within_memory.h"
#include "schedule/token_counts.h"
#include "train/divided_memory.h"
#include "train/learning_rate.h"

namespace cotune {
namespace {

TrainerOptions with_division(TrainerOptions options) {
  if (options.parallel.replicas.empty()) options.parallel.replicas = {{.pipeline = options.ranks}};
  return options;
}

/// Before any job is loaded: what is held now stays.
MemoryFacts facts_with_weights(const Backbone& backbone, const TrainerOptions& options) {
  release_unused_memory();
  MemoryFacts facts = memory_facts(backbone.compute(), backbone.device());
  const bool are_processes = options.rank_group != nullptr && options.rank_group->are_processes();
  set_division(facts, options.parallel, options.pipeline_order, options.interleave,
               are_processes ? options.rank_group->layouts() : std::span<const PipelineLayout>{});
  int64_t weight_bytes = options.parts.contains(backbone.shard().count) ? 0 : backbone.weight_bytes();
  for (const auto& [degree, parts] : options.parts) {
    for (const auto& part : parts) weight_bytes += part->weight_bytes();
  }
  facts.weight_bytes = std::max({weight_bytes, memory_usage().held_bytes, options.largest_rank_weight_bytes});
  return facts;
}

}  // namespace

Trainer::Trainer(std::shared_ptr<const Backbone> backbone, std::vector<std::unique_ptr<TrainingJob>> jobs,
                 TrainerOptions options)
    : backbone_(std::move(backbone)),
      jobs_(std::move(jobs)),
      options_(with_division(std::move(options))),
      planner_(backbone_->config(),
               options_.costs ? *options_.costs : roofline_costs(backbone_->compute(), options_.device), options_.fusion, options_.followed),
      requested_token_budget_(options_.policy.token_budget),
      facts_(facts_with_weights(*backbone_, options_)),
      learned_(backbone_->config(), facts_),
      process_limit_(options_.memory_limit_bytes, options_.device),
      sweeps_(options_.sweeps != nullptr ? *options_.sweeps : own_sweeps_) {
  options_.policy.layer_count = backbone_->config().layer_count;
  COTUNE_CHECK(options_.parallel.ranks() == options_.ranks, "{} ranks, divided among {}", options_.parallel.ranks(), options_.ranks);
  options_.policy.recompute = options_.recompute == Recompute::always;
  if (options_.relief && options_.relief->requested_token_budget == requested_token_budget_) {
    options_.policy.token_budget = std::min(options_.policy.token_budget, options_.relief->token_budget);
    if (options_.recompute == Recompute::automatic) options_.policy.recompute = options_.relief->recompute;
  }
  for (const auto& job : jobs_) {
    sweeps_.add(*job);
    division_jobs_.push_back(job->index());
  }
  operator_seconds_.resize(static_cast<size_t>(options_.ranks));
  if (options_.ranks > 1) {
    start_ranks();
  } else {
    start_alone();
  }
}

void Trainer::start_alone() {
  start_refit(options_.costs ? *options_.costs : roofline_costs(backbone_->compute(), options_.device));
  interpreter_ = std::make_unique<Interpreter>(backbone_);
  if (options_.device.device.is_cuda()) device_times_ = std::make_unique<DeviceTimes>(options_.device.device);
  interpreter_->observe([this](const Operator& op, const MicrobatchState&, double seconds) {
    if (device_times_ != nullptr) {
      device_times_->mark(to_string(op.kind));
    } else if (options_.device.is_cpu()) {
      operator_seconds_.front()[to_string(op.kind)] += seconds;
    }
    break_off_stopped_evaluation();
  });
}

double Trainer::seconds_since_start() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

RunSummary Trainer::run() {
  start_ = std::chrono::steady_clock::now();
  summary_.memory_limit_bytes = options_.memory_limit_bytes;
  summary_.device = options_.device.name;
  summary_.gpu_messages = options_.gpu_messages;
  if (!options_.gpu_messages.empty()) {
    tell([this](RunObserver& observer) { observer.on_notice("tensors go between the GPUs " + options_.gpu_messages); });
  }
  summary_.emulated = options_.device.is_emulated();
  if (summary_.emulated) {
    tell([&](RunObserver& observer) {
      observer.on_notice(fmt::format("{}: operators take the times of {} and compute nothing; no adapter comes of it", summary_.device,
                                     options_.costs ? options_.costs->source : "a roofline"));
    });
  }
  tell_of_data(jobs_);
  for (const auto& job : jobs_) {
    const JobStatus status = job->state().status;
    if (status == JobStatus::paused) tell([&](RunObserver& observer) { observer.on_job_paused(*job); });
    if (has_ended(status)) tell([&](RunObserver& observer) { observer.on_job_ended(*job); });
  }
  judge_candidates();
  admit_jobs();
  while (true) {
    if (options_.between_rounds) options_.between_rounds(*this);
    replan_division();
    use_learned_peak();
    evaluate_started();
    if (stop_asked()) break;
    const std::vector<TrainingJob*> live = live_jobs();
    if (!live.empty()) {
      run_round(live);
    } else if (!options_.wait_for_work || !options_.wait_for_work()) {
      break;
    }
  }
  if (options_.drained != nullptr && options_.drained->load()) {
    tell([this](RunObserver& observer) {
      observer.on_notice(summary_.emulated ? "asked to drain: the run ends, and nothing of an emulated one is saved"
                                           : "asked to drain: every job is saved");
    });
  }
  for (const auto& job : jobs_) {
    const JobStatus status = job->state().status;
    if (has_ended(status) || (!stop_asked() && status != JobStatus::paused)) continue;
    if (!stop_asked()) {
      tell([&](RunObserver& observer) {
        observer.on_notice(fmt::format("job `{}` is still paused: {}", job->spec().name,
                                       summary_.emulated ? "nothing of an emulated run is saved" : "--resume goes on with it"));
      });
    }
    summary_.interrupted = true;
    const bool began = status == JobStatus::running || job->state().step > 0;  // or waits
    if (began && !job->is_saved()) save(*job);
  }
  summary_.seconds = seconds_since_start();
  for (const std::map<std::string, double>& rank : operator_seconds_) {
    for (const auto& [name, seconds] : rank) summary_.operator_seconds[name] += seconds;
  }
  if (refit_ != nullptr) {
    summary_.prediction_errors = refit_->errors();
    summary_.microbatches = refit_->measured();
  }
  summary_.memory = memory_usage();
  summary_.peak_rss_bytes = peak_resident_bytes();
  if (!options_.device.is_cpu()) summary_.device_memory = options_.device.memory();
  process_limit_.set(0);
  tell([&](RunObserver& observer) { observer.on_run_ended(summary_); });
  return summary_;
}

void Trainer::tell_of_data(std::span<const std::unique_ptr<TrainingJob>> jobs) {
  std::set<std::string> told;
  for (const auto& job : jobs) {
    if (has_ended(job->state().status)) continue;
    const JobSpec& spec = job->spec();
    const std::string who = spec.sweep.of.empty() ? fmt::format("job `{}`", spec.name) : fmt::format("sweep `{}`", spec.sweep.of);
    std::vector<std::string> warnings{warmup_warning(spec.train, job->total_steps())};
    for (const FileReport& file : job->data().files) std::ranges::copy(file.warnings(), std::back_inserter(warnings));
    for (const std::string& warning : warnings) {
      const std::string text = fmt::format("{}: {}", who, warning);
      if (!warning.empty() && told.insert(text).second) tell([&](RunObserver& observer) { observer.on_notice(text); });
    }
  }
}

std::vector<TrainingJob*> Trainer::live_jobs() const {
  std::vector<TrainingJob*> live = running_jobs();
  if (options_.policy.sharing == Sharing::separate && !live.empty()) {  // one job at a time, to its end
    live = {*std::min_element(live.begin(), live.end(), [this](const TrainingJob* a, const TrainingJob* b) {
      return goes_before(candidate(*a), candidate(*b));
    })};
  }
  return live;
}

void Trainer::run_round(const std::vector<TrainingJob*>& live) {
  apply_memory_limit();
  std::vector<JobRound> rounds;
  std::optional<std::string> trouble;
  const size_t running_before = running_jobs().size();
  bool one_ended = false;
  for (TrainingJob* job : live) {
    if (job->state().status != JobStatus::running) continue;  // paused for one that took an ended job's place
    try {
      if (job->stops_early() || job->done()) {  // resumed at its end
        one_ended = true;
        finish_job(*job);
        continue;
      }
      rounds.push_back(within_memory([&] { return job->next_round(); }));
    } catch (const UserError& error) {
      one_ended = true;
      fail_job(*job, error.what());
    } catch (const MemoryLimitExceeded& error) {
      trouble = error.what();
    }
  }
  if (one_ended) return;  // others took the place, for which those above may have made way and come back with other adapters
  if (rounds.empty()) {
    if (trouble) pause_a_job(*trouble);
    return;
  }
  const size_t round_count = add_rounds_ahead(rounds);
  const double before = seconds_since_start();
  round_tokens_.clear();
  if (const auto found = interpret(rounds)) trouble = found;
  round_seconds_ = (seconds_since_start() - before) / static_cast<double>(round_count);
  const size_t job_count = rounds.size() / round_count;  // memory may have broken selections off
  DueWork due;
  for (size_t first = 0; first < rounds.size(); first += job_count) {
    finish_rounds({rounds.data() + first, job_count}, due);
  }
  for (TrainingJob* current : due.failures) fail_with_bad_state(*current);
  for (const auto& [current, reason] : due.selections_without_memory) {
    trouble = reason;
    if (running_jobs().size() == 1) {
      fail_job(*current, fmt::format("it does not fit even alone: {}", reason));
    } else {
      set_aside(*current, reason);
    }
  }
  if (!due.evaluations.empty()) evaluate(due.evaluations);
  report_missed_deadlines(rounds);
  for (TrainingJob* current : due.checkpoints) {
    if (current->is_loaded()) save(*current);  // a job that was paused meanwhile has been saved
  }
  for (size_t i = 0; i < job_count; ++i) {
    TrainingJob& current = job(rounds[i].job);
    // An evaluation that is still due was broken off: the job ends when a resumed run has made it.
    if (current.state().status != JobStatus::running || current.evaluation_due()) continue;
    if (current.stops_early() || current.done()) finish_job(current);
  }
  if (trouble && running_jobs().size() == running_before) pause_a_job(*trouble);  // no job has made room
}

void Trainer::forget_round_time_where_jobs_come(std::span<const JobRound> rounds) {
  std::set<int32_t> jobs;
  for (const JobRound& round : rounds) jobs.insert(round.job);
  if (!std::ranges::includes(round_jobs_, jobs)) round_seconds_ = 0;
  round_jobs_ = std::move(jobs);
}

void Trainer::finish_rounds(std::span<const JobRound> rounds, DueWork& due) {
  int64_t real_tokens = 0;
  for (const JobRound& round : rounds) {
    TrainingJob& current = job(round.job);
    const bool ran = round.stepped || !round.failure.empty() || round.purpose == RoundPurpose::select;
    if (!ran || current.state().status != JobStatus::running) continue;  // broken off: it comes again
    bool stepped = false;
    try {
      stepped = within_memory([&] { return finish_round(current, round); });
    } catch (const MemoryLimitExceeded& error) {  // at the end of a selection, which then begins again
      due.selections_without_memory.push_back({&current, error.what()});
      continue;
    }
    if (current.state().status == JobStatus::failed) {
      due.failures.push_back(&current);
      continue;
    }
    if (!stepped) {
      tell([&](RunObserver& observer) { observer.on_selection(current); });
      if (current.checkpoint_due()) due.checkpoints.push_back(&current);
      continue;
    }
    real_tokens += count_step(current, round);
    if (current.evaluation_due()) {
      due.evaluations.push_back(&current);
    } else if (current.checkpoint_due() || current.done()) {
      due.checkpoints.push_back(&current);
    }
  }
  if (real_tokens > 0 && summary_.rounds == 0) {
    summary_.seconds_to_first_step =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - options_.program_start).count();
  }
  tell([&](RunObserver& observer) { observer.on_round_ended(seconds_since_start()); });
  if (real_tokens == 0) return;
  tokens_since_usage_ += real_tokens;
  if (summary_.rounds > 0) summary_.seconds_training += round_seconds_;
  ++summary_.rounds;
  tell_of_usage();
}

void Trainer::tell_of_usage() {
  const double now = seconds_since_start();
  const double interval = std::clamp(now / 1000, 1.0, 60.0);
  if (summary_.rounds > 1 && now - last_usage_s_ < interval) return;
  UsageEvent usage{.seconds = now,
                   .resident_bytes = resident_bytes(),
                   .tensor_bytes = memory_usage().held_bytes,
                   .tokens_per_second = static_cast<double>(tokens_since_usage_) / (now - last_usage_s_),
                   .emulated = options_.device.is_emulated()};
  for (const auto& job : jobs_) usage.steps += job->state().step;
  if (ranks_ != nullptr) {
    usage.planning_seconds = summary_.planning_seconds;
    usage.planning_exposed_seconds = summary_.planning_exposed_seconds;
    usage.ranks = summary_.ranks;
  }
  if (!options_.device.is_cpu()) usage.device_memory = options_.device.memory();
  tell([&](RunObserver& observer) { observer.on_usage(usage); });
  last_usage_s_ = now;
  tokens_since_usage_ = 0;
}

int64_t Trainer::count_step(const TrainingJob& current, const JobRound& round) {
  const TokenCounts& counts = round_tokens_.at({round.job, round.batch->step});
  summary_.tokens[round.job] += counts;
  summary_.labelled[round.job] += round.labelled_tokens;
  if (!round.emulated) summary_.losses[round.job].push_back(round.loss());
  if (summary_.rounds > 0) {
    summary_.real_tokens += counts.real;
    summary_.labelled_tokens += round.labelled_tokens;
  }
  double& recent = recent_rate_[round.job];
  const double rate = static_cast<double>(counts.real) / round_seconds_;
  recent = recent == 0 ? rate : 0.9 * recent + 0.1 * rate;
  const double tokens_a_step =
      static_cast<double>(current.state().trained_tokens) / static_cast<double>(current.state().step);
  const auto steps_left = static_cast<double>(current.total_steps() - current.state().step);
  tell([&](RunObserver& observer) {
    observer.on_step({&current, round.loss(), round.optimizer.learning_rate, round.gradient_norm, counts,
                      round.labelled_tokens, seconds_since_start(), recent, steps_left * tokens_a_step / recent});
  });
  return counts.real;
}

std::optional<std::string> Trainer::interpret(std::vector<JobRound>& rounds) {
  while (true) {
    // By round: the first step of every job that is open, the next one, …
    std::vector<std::vector<JobRound>> open;
    std::map<int32_t, size_t> steps;
    std::set<int32_t> failed;
    for (const JobRound& round : rounds) {
      if (!round.failure.empty()) failed.insert(round.job);
      if (round.stepped || failed.contains(round.job)) continue;
      const size_t place = steps[round.job]++;
      if (place == open.size()) open.emplace_back();
      open[place].push_back(round);
    }
    if (open.empty()) return std::nullopt;
    std::vector<JobRound> results;
    for (const std::vector<JobRound>& each : open) results.insert(results.end(), each.begin(), each.end());
    const auto take_back = [&] {
      for (JobRound& result : results) {
        for (JobRound& round : rounds) {
          if (round.batch == result.batch) round = std::move(result);
        }
      }
    };
    try {
      std::vector<StepPlan> plans;
      for (const std::vector<JobRound>& each : open) plans.push_back(plan_of(plans.size(), each));
      run_plans(plans, results);
      take_back();
      return std::nullopt;
    } catch (const MemoryLimitExceeded& trouble) {
      take_back();
      // A selection has added up part of this round's gradients: it starts again with the next round.
      std::erase_if(rounds, [&](const JobRound& round) {
        if (round.purpose == RoundPurpose::select) job(round.job).restart_selection_pass();
        return round.purpose == RoundPurpose::select;
      });
      if (!make_rounds_smaller(trouble.what())) return trouble.what();
    }
  }
}

StepPlan Trainer::plan_of(size_t place, const std::vector<JobRound>& rounds) {
  StepPlan plan = step_plan_of(place, rounds);
  if (ranks_ == nullptr) {  // else as the ranks pack it (count_tokens_of)
    const std::vector<TokenCounts> counts = count_tokens(plan);
    for (size_t i = 0; i < rounds.size(); ++i) round_tokens_[{rounds[i].job, rounds[i].batch->step}] = counts[i];
  }
  tell([&](RunObserver& observer) { observer.on_plan(plan, rounds); });
  return plan;
}

}  // namespace cotune
