// The part of a run that keeps it under its memory limit: which jobs start, and what is given up when memory runs out.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <utility>

#include "base/error.h"
#include "base/quantity_text.h"
#include "ops/within_memory.h"
#include "schedule/memory/resident_memory.h"
#include "schedule/memory/smaller_rounds.h"
#include "schedule/pipeline/rank_place.h"
#include "train/accepted_limit.h"
#include "train/process_memory.h"
#include "train/trainer.h"

namespace cotune {
namespace {

bool may_run(const TrainingJob& job) {
  return job.state().status == JobStatus::waiting || job.state().status == JobStatus::running;
}

/// What is said of a job that can never fit, with a limit that would admit it where this process knows.
std::string text_of(const AdmissionRefusal& refusal, const TrainerOptions& options) {
  const int64_t asked = options.memory_limit_bytes, kept = asked - refusal.limit_bytes;  // for the process beside its tensors
  const bool knows_kept = options.tensor_limit_bytes == 0 && options.rank_tensor_limits.empty() && refusal.limit_bytes > 1 && kept > 0;
  return refusal.to_string(asked) + (knows_kept ? accepted_limit_text(refusal.needed_bytes, kept - expected_growth_bytes()) : "");
}

}  // namespace

void Trainer::apply_memory_limit() {
  if (options_.tensor_limit_bytes > 0) {
    tensor_limit_ = options_.tensor_limit_bytes;
    process_limit_.set(tensor_limit_);
  } else {
    tensor_limit_ = process_limit_.apply();
    for (const int64_t limit : options_.rank_tensor_limits) tensor_limit_ = tensor_limit_ > 0 ? std::min(tensor_limit_, limit) : limit;
  }
}

MemoryEstimate Trainer::predict(std::span<const int32_t> indices, const PackingPolicy& policy) const {
  std::vector<JobFootprint> footprints, running;
  for (const int32_t index : indices) {
    const TrainingJob& job = *jobs_[static_cast<size_t>(index)];
    footprints.push_back(job.footprint());
    if (job.state().status == JobStatus::running) running.push_back(footprints.back());
  }
  return learned_.predict(footprints, running, policy);
}

std::optional<PackingPolicy> Trainer::smaller(const PackingPolicy& policy) const {
  return smaller_rounds(policy, options_.recompute);
}

std::optional<PackingPolicy> Trainer::policy_that_fits(int32_t index) const {
  for (std::optional<PackingPolicy> policy = options_.policy; policy; policy = smaller(*policy)) {
    if (predict(std::array{index}, *policy).total() <= tensor_limit_) return policy;
  }
  return std::nullopt;
}

void Trainer::use(const PackingPolicy& policy, const std::string& reason) {
  std::string measure = policy.recompute ? "recomputation" : "no recomputation";
  if (policy.token_budget != options_.policy.token_budget) measure = fmt::format("token budget {}", policy.token_budget);
  options_.policy = policy;
  tell([&](RunObserver& observer) { observer.on_notice(fmt::format("memory: {}: {}", reason, measure)); });
  const MemoryRelief relief{requested_token_budget_, policy.token_budget, policy.recompute};
  tell([&](RunObserver& observer) { observer.on_relief(relief); });
}

AdmissionCandidate Trainer::candidate(const TrainingJob& job) const {
  if (sweeps_.has(job) && job.state().status == JobStatus::waiting) return waiting_candidate(job, std::ssize(jobs_));
  return {.job = job.index(),
          .priority = job.spec().priority,
          .arrival = job.index(),
          .running = job.state().status == JobStatus::running,
          .deadline = job.deadline()};
}

Admission Trainer::decide_admission() {
  const std::map<int32_t, std::string> held = sweeps_.held_back(jobs_);
  std::vector<AdmissionCandidate> candidates;
  for (const auto& job : jobs_) {
    const bool paused = std::find(paused_.begin(), paused_.end(), job->index()) != paused_.end();
    if (!may_run(*job) || paused || held.contains(job->index())) continue;
    candidates.push_back(candidate(*job));
  }
  Admission admission;
  if (tensor_limit_ == 0) {
    for (const AdmissionCandidate& candidate : candidates) admission.admitted.push_back(candidate.job);
    return admission;
  }
  const auto predicted = [this](std::span<const int32_t> jobs) { return predict(jobs, options_.policy); };
  admission = admit(candidates, tensor_limit_, predicted);
  // What does not fit alone may fit with smaller microbatches: such a job waits until it is alone.
  std::vector<AdmissionRefusal> refused;
  for (const AdmissionRefusal& refusal : admission.refused) {
    const auto alone = [&](const PackingPolicy& policy) { return predict(std::array{refusal.job}, policy); };
    const auto final = refuse_for_ever(refusal.job, tensor_limit_, options_.policy, options_.recompute, alone);
    if (final) refused.push_back(*final);
    if (!final) admission.waiting.push_back(refusal.job);
  }
  admission.refused = std::move(refused);
  return admission;
}

Admission Trainer::admission_without_refusals() {
  Admission admission = decide_admission();
  while (!admission.refused.empty()) {
    for (const AdmissionRefusal& refusal : admission.refused) {
      job(refusal.job).state().failure = text_of(refusal, options_);
      end_job(job(refusal.job), JobStatus::refused);
    }
    admission = decide_admission();
  }
  return admission;
}

std::optional<std::string> Trainer::reason_never_to_fit(const TrainingJob& job) const {
  if (tensor_limit_ == 0) return std::nullopt;
  const std::array footprint{job.footprint()};
  const auto alone = [&](const PackingPolicy& policy) { return learned_.predict(footprint, {}, policy); };
  const auto refusal = refuse_for_ever(job.index(), tensor_limit_, options_.policy, options_.recompute, alone);
  if (!refusal) return std::nullopt;
  return text_of(*refusal, options_);
}

int64_t Trainer::bytes_with(const TrainingJob& job) const {
  std::vector<int32_t> together;
  for (const TrainingJob* running : running_jobs()) together.push_back(running->index());
  together.push_back(job.index());
  return predict(together, options_.policy).total();
}

std::string Trainer::wait_reason(const TrainingJob& job) const {
  const int64_t running = std::ssize(running_jobs());
  const std::string beside = running == 1 ? "the running job" : fmt::format("the {} running jobs", running);
  return fmt::format("memory: it and {} would take {}, the limit leaves {}", beside, bytes_text(bytes_with(job)), bytes_text(tensor_limit_));
}

bool Trainer::put_out_lower_priorities(const Admission& admission) {
  std::vector<AdmissionCandidate> candidates;
  for (const int32_t index : admission.admitted) {
    candidates.push_back(candidate(job(index)));
    candidates.back().running = true;  // or will be, unless it is in the way itself
  }
  const auto predicted = [this](std::span<const int32_t> jobs) { return predict(jobs, options_.policy); };
  for (const int32_t waiting : admission.waiting) {
    candidates.push_back(candidate(job(waiting)));
    const std::vector<int32_t> out = jobs_to_put_out(candidates, waiting, tensor_limit_, predicted);
    candidates.pop_back();
    bool any = false;
    for (const int32_t index : out) {
      TrainingJob& lower = job(index);
      if (lower.state().status != JobStatus::running) continue;
      save_if_it_has_stepped(lower);
      take_out(lower, fmt::format("priority: job `{}` makes way for `{}` at step {}", lower.spec().name, job(waiting).spec().name,
                                  lower.state().step));
      any = true;
    }
    if (any) return true;
  }
  return false;
}

void Trainer::admit_jobs() {
  start_jobs();
  evaluate_started();
}

void Trainer::fill_place() {
  paused_.clear();
  start_jobs();
}

void Trainer::start_jobs() {
  end_jobs_that_are_through();
  apply_memory_limit();
  Admission admission = admission_without_refusals();
  if (admission.admitted.empty() && !admission.waiting.empty()) {
    // Nothing else is left to end first.
    const TrainingJob& next = job(admission.waiting.front());
    const PackingPolicy fitting = *policy_that_fits(next.index());
    for (PackingPolicy larger = options_.policy; larger != fitting; larger = *smaller(larger)) ruled_out_.push_back(larger);
    use(fitting, fmt::format("job `{}` does not fit otherwise", next.spec().name));
    admission = admission_without_refusals();
  }
  while (put_out_lower_priorities(admission)) admission = admission_without_refusals();
  std::vector<std::pair<TrainingJob*, std::string>> failed;
  for (const int32_t index : admission.admitted) {
    TrainingJob& candidate = job(index);
    if (candidate.state().status == JobStatus::running) continue;
    try {
      const RankTask task = task_of("loading the adapter", candidate);
      make_room_for_files(candidate);
      within_memory([&] {
        candidate.load();
        share_with_ranks(candidate);
      });
    } catch (const MemoryLimitExceeded& trouble) {
      unload(candidate);
      const bool alone = running_jobs().empty();
      if (alone) failed.push_back({&candidate, trouble.what()});
      if (!alone) paused_.push_back(index);
      candidate.state().wait_reason = fmt::format("memory: {}", trouble.what());
      continue;
    } catch (const UserError& error) {
      failed.push_back({&candidate, error.what()});
      continue;
    }
    candidate.state().status = JobStatus::running;
    candidate.state().wait_reason.clear();
    started_.push_back(&candidate);
    tell([&](RunObserver& observer) { observer.on_job_started(candidate); });
  }
  for (const int32_t index : admission.waiting) {
    job(index).state().wait_reason = wait_reason(job(index));
    tell([&](RunObserver& observer) { observer.on_job_waiting(job(index)); });
  }
  note_waiting(admission.waiting);
  for (const auto& [index, reason] : sweeps_.held_back(jobs_)) {
    if (std::exchange(job(index).state().wait_reason, reason) == reason) continue;
    tell([&](RunObserver& observer) { observer.on_job_waiting(job(index)); });
  }
  for (const auto& [candidate, reason] : failed) {
    // The end of one starts others anew, these among them.
    if (candidate->state().status == JobStatus::waiting) fail_job(*candidate, reason);
  }
}

void Trainer::evaluate_started() {
  while (!started_.empty()) {  // an evaluation may make room for others, which start
    std::vector<TrainingJob*> started = std::exchange(started_, {});
    std::sort(started.begin(), started.end(), [](const TrainingJob* a, const TrainingJob* b) { return a->index() < b->index(); });
    started.erase(std::unique(started.begin(), started.end()), started.end());  // one may have paused and gone on
    std::erase_if(started, [](const TrainingJob* candidate) {
      return candidate->state().status != JobStatus::running || !candidate->evaluation_due();
    });
    if (started.empty()) continue;
    round_policy();  // told of before the evaluations, which can take long
    evaluate(started);
  }
}

std::vector<JobFootprint> Trainer::running_footprints() const {
  std::vector<JobFootprint> footprints;
  for (const TrainingJob* job : running_jobs()) footprints.push_back(job->footprint());
  return footprints;
}

std::vector<TrainingJob*> Trainer::running_jobs() const {
  std::vector<TrainingJob*> running;
  for (const auto& job : jobs_) {
    if (job->state().status == JobStatus::running) running.push_back(job.get());
  }
  return running;
}

bool Trainer::make_rounds_smaller(const std::string& trouble) {
  if (!options_.device.is_cpu()) options_.device.plugin->release_unused_memory();
  ruled_out_.clear();  // whatever is predicted of them
  has_run_short_ = true;
  if (std::exchange(keeps_spare_, false)) {
    tell([&](RunObserver& observer) { observer.on_notice(fmt::format("memory: {}: no more in flight than ranks need", trouble)); });
    return true;
  }
  const std::optional<PackingPolicy> policy = smaller(options_.policy);
  if (policy) use(*policy, trouble);
  return policy.has_value();
}

int64_t Trainer::spare_bytes_of_rank() {
  if (has_run_short_ || least_waiting_bound_ || !ruled_out_.empty()) return 0;
  if (tensor_limit_ == 0) return std::numeric_limits<int64_t>::max();
  std::vector<int32_t> running;
  for (const TrainingJob* job : running_jobs()) running.push_back(job->index());
  if (spare_ && spare_->jobs == running && spare_->policy == options_.policy && spare_->limit == tensor_limit_) return spare_->bytes;
  const int64_t bound = learned_.with_correction(running_footprints(), options_.policy, std::nullopt).total();
  const int64_t left = std::max<int64_t>(0, tensor_limit_ - std::max(bound, predict(running, options_.policy).total()));
  const int64_t sharers = ranks_->are_processes() ? 1 : rank_count_of(ranks_->layouts());
  const auto bytes = static_cast<uint64_t>(static_cast<double>(left / sharers) / facts_.fragmentation / bytes_over_priced());
  // Coarse, so that a limit which goes down by a little does not make void what was planned ahead.
  const uint64_t grain = std::max<uint64_t>(1, std::bit_floor(bytes) / 8);
  spare_ = {std::move(running), options_.policy, tensor_limit_, static_cast<int64_t>(bytes / grain * grain)};
  return spare_->bytes;
}

double Trainer::bytes_over_priced() const { return facts_.element_size > 4 ? 2 : 1; }

void Trainer::pause_a_job(const std::string& trouble) {
  std::vector<AdmissionCandidate> running;
  for (const TrainingJob* job : running_jobs()) running.push_back(candidate(*job));
  if (running.empty()) return;
  TrainingJob& victim = job(job_to_pause(running));
  if (running.size() == 1) {
    fail_job(victim, fmt::format("it does not fit even alone: {}", trouble));
    return;
  }
  save_if_it_has_stepped(victim);
  set_aside(victim, trouble);
}

void Trainer::set_aside(TrainingJob& victim, const std::string& trouble) {
  paused_.push_back(victim.index());
  take_out(victim, fmt::format("memory: {}: job `{}` pauses at step {}", trouble, victim.spec().name, victim.state().step));
}

void Trainer::take_out(TrainingJob& victim, const std::string& reason) {
  unload(victim);
  victim.state().status = JobStatus::waiting;
  victim.state().wait_reason = reason;
  tell([&](RunObserver& observer) {
    observer.on_notice(reason);
    observer.on_job_waiting(victim);
  });
}

void Trainer::make_room_for_files(const TrainingJob& job) {
  if (options_.memory_limit_bytes == 0 || tensor_limit_ == 0 || !options_.device.is_cpu()) return;
  set_memory_limit(std::max<int64_t>(1, tensor_limit_ - file_bytes(backbone_->config(), job.footprint(), facts_)));
  set_memory_limit(tensor_limit_);
}

}  // namespace cotune
