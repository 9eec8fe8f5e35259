#include "cluster/simulate_trace.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "cluster/trace_simulator.h"

namespace cotune {

TraceSimulator::TraceSimulator(const Trace& trace, SchedulingPolicy& policy, RoundRates& rates, const InstanceMemory& memory,
                               const std::vector<double>& dedicated_round_s, const TraceOptions& options)
    : trace_(trace), policy_(policy), rates_(rates), memory_(memory), options_(options) {
  COTUNE_CHECK(options.instances > 0, "a cluster of {} instances", options.instances);
  COTUNE_CHECK(dedicated_round_s.size() == trace.kinds.size() && memory.kinds.size() == trace.kinds.size(),
               "{} kinds, memory of {}, rounds of {}", trace.kinds.size(), memory.kinds.size(), dedicated_round_s.size());
  instances_.assign(static_cast<size_t>(options.instances), Instance(memory));
  tenants_.resize(trace.tenants.size());
  result_.jobs.resize(trace.jobs.size());
  for (size_t i = 0; i < trace.jobs.size(); ++i) {
    const TraceJob& each = trace.jobs[i];
    Job& job = jobs_.emplace_back();
    job.alone_s = dedicated_round_s[static_cast<size_t>(each.kind)];
    job.planned = planned_steps(each, job.alone_s);
    job.facts = {static_cast<int64_t>(i), each.kind, each.priority, each.arrival_s, each.deadline_s,
                 static_cast<double>(job.planned) * job.alone_s};
    job.tenant = each.tenant;
    job.dedicated = each.dedicated;
    result_.jobs[i].steps = trained_steps(each, job.planned);
  }
  const double last_arrival_s = trace.jobs.empty() ? 0 : trace.jobs.back().arrival_s;
  result_.window_s = options.window_s > 0 ? options.window_s : last_arrival_s;
  window_is_open_ = result_.window_s == 0;
}

TraceSimulation TraceSimulator::run() {
  size_t arrived = 0;
  double lead_s = never;
  while (true) {
    const double arrival_s = arrived < trace_.jobs.size() ? trace_.jobs[arrived].arrival_s : never;
    double finish_s = never;
    for (const Instance& instance : instances_) finish_s = std::min(finish_s, instance.next_finish_s);
    const double next_s = std::min({arrival_s, finish_s, lead_s});
    if (next_s == never) break;
    now_ = std::max(now_, next_s);
    for (size_t i = 0; i < instances_.size(); ++i) {
      if (instances_[i].next_finish_s <= now_) finish_jobs(i);
    }
    for (; arrived < trace_.jobs.size() && trace_.jobs[arrived].arrival_s <= now_; ++arrived) arrive(arrived);
    schedule();
    refresh();
    lead_s = next_lead_s();
    sample();
  }
  refuse_the_rest();
  finish_up();
  return std::move(result_);
}

// --- the clock of an instance ---

void TraceSimulator::advance(Instance& instance) {
  const double seconds = now_ - instance.until_s;
  if (seconds > 0 && !instance.mix.empty()) {
    instance.rounds += seconds / instance.round_s;
    const double in_window = window_is_open_ ? seconds : std::clamp(result_.window_s - instance.until_s, 0.0, seconds);
    const auto count = static_cast<double>(instance.jobs.size());
    result_.window_busy_s += in_window;
    result_.window_running_s += in_window * count;
    for (const int64_t each : instance.jobs) {
      tenant_of(each).service_s += seconds / count;
      Job& job = jobs_[static_cast<size_t>(each)];
      const double restarting = std::min(job.restart_s, seconds);
      job.restart_s -= restarting;
      job.from_rounds += restarting / instance.round_s;
      outcome_of(job).restarting_s += restarting;
      const double training_in_window = in_window - std::min(restarting, in_window);
      result_.window_tokens +=
          static_cast<double>(trace_.kinds[static_cast<size_t>(job.facts.kind)].step_tokens()) * training_in_window / instance.round_s;
    }
  }
  instance.until_s = now_;
}

double TraceSimulator::rounds_left(const Job& job) const {
  const auto steps = static_cast<double>(result_.jobs[static_cast<size_t>(job.facts.job)].steps);
  double passed = 0;
  if (job.instance >= 0) passed = instances_[static_cast<size_t>(job.instance)].rounds - job.from_rounds;
  return steps - job.done - passed;
}

double TraceSimulator::seconds_left(const Instance& instance, const Job& job) const {
  return job.restart_s + std::max(0.0, rounds_left(job)) * instance.round_s;
}

JobFacts TraceSimulator::facts_now(const Job& job) const {
  JobFacts facts = job.facts;
  const auto hidden = static_cast<double>(job.planned - result_.jobs[static_cast<size_t>(job.facts.job)].steps);
  facts.remaining_s = job.restart_s + std::max(0.0, rounds_left(job) + hidden) * job.alone_s;
  return facts;
}

// --- events ---

void TraceSimulator::record(TraceEventKind kind, int64_t job, int64_t instance) {
  result_.events.push_back({now_, kind, job, instance});
}

void TraceSimulator::arrive(size_t index) {
  Job& job = jobs_[index];
  record(TraceEventKind::arrive, job.facts.job);
  if (!MemoryInUse(memory_).fits(job.facts.kind)) {
    result_.jobs[static_cast<size_t>(job.facts.job)].fits_nowhere = true;
    refuse(job, "does not fit into the memory of an instance, even alone: " + memory_.overflow_text(JobMix({job.facts.kind})));
    return;
  }
  wait(job);
}

void TraceSimulator::wait(Job& job) {
  job.came_s = now_;
  job.facts = facts_now(job);
  waiting_.add(group_of(job), place_of(job));
}

void TraceSimulator::stop_waiting(const Job& job) {
  waiting_.remove(group_of(job), place_of(job));
  if (held_for_ == job.facts.job) held_for_ = -1;
}

void TraceSimulator::start(Job& job, size_t index) {
  Instance& instance = instances_[index];
  advance(instance);
  stop_waiting(job);
  instance.mix.add(job.facts.kind);
  instance.jobs.push_back(job.facts.job);
  instance.dedicated = job.dedicated;
  job.instance = static_cast<int64_t>(index);
  job.from_rounds = instance.rounds;
  job.came_s = now_;
  tenant_of(job.facts.job).running_jobs += 1;
  JobOutcome& outcome = outcome_of(job);
  outcome.started_s = std::min(outcome.started_s, now_);
  change(instance);
  record(TraceEventKind::start, job.facts.job, job.instance);
}

void TraceSimulator::take_off(Job& job) {
  Instance& instance = instances_[static_cast<size_t>(job.instance)];
  JobOutcome& outcome = outcome_of(job);
  outcome.ran_s += now_ - job.came_s;
  outcome.rounds += instance.rounds - job.from_rounds;
  instance.mix.remove(job.facts.kind);
  instance.jobs.erase(std::find(instance.jobs.begin(), instance.jobs.end(), job.facts.job));
  instance.dedicated = false;
  tenant_of(job.facts.job).running_jobs -= 1;
  change(instance);
}

void TraceSimulator::preempt(Job& job) {
  Instance& instance = instances_[static_cast<size_t>(job.instance)];
  advance(instance);
  take_off(job);
  JobOutcome& outcome = outcome_of(job);
  const double made = instance.rounds - job.from_rounds;
  // A moment before the end of a step is its end.
  const double kept = std::min(std::floor(made + 1e-6), static_cast<double>(outcome.steps) - job.done);
  outcome.lost_steps += made - kept;
  outcome.preemptions += 1;
  job.done += kept;
  job.restart_s = options_.restart_s;
  record(TraceEventKind::preempt, job.facts.job, job.instance);
  job.instance = -1;
  wait(job);
}

void TraceSimulator::finish_jobs(size_t index) {
  Instance& instance = instances_[index];
  advance(instance);
  std::vector<int64_t> through;
  const double tolerance = 1e-9 * std::max(1.0, instance.rounds) * instance.round_s;
  double least = never;
  for (const int64_t job : instance.jobs) least = std::min(least, seconds_left(instance, jobs_[static_cast<size_t>(job)]));
  // The one with the least left is through by now, whatever rounding says.
  for (const int64_t job : instance.jobs) {
    if (seconds_left(instance, jobs_[static_cast<size_t>(job)]) <= least + tolerance) through.push_back(job);
  }
  for (const int64_t each : through) {
    Job& job = jobs_[static_cast<size_t>(each)];
    take_off(job);
    job.done = static_cast<double>(outcome_of(job).steps);
    outcome_of(job).finished_s = now_;
    record(TraceEventKind::finish, each, job.instance);
    job.instance = -1;
  }
}

void TraceSimulator::refuse(const Job& job, std::string why) {
  outcome_of(job).refusal = std::move(why);
  record(TraceEventKind::refuse, job.facts.job);
}

void TraceSimulator::change(Instance& instance) {
  instance.changed = true;
  instance.in_use.set(instance.mix);
}

void TraceSimulator::refresh() {
  for (Instance& instance : instances_) {
    if (!instance.changed) continue;
    instance.changed = false;
    instance.until_s = now_;
    instance.next_finish_s = never;
    if (instance.mix.empty()) continue;
    instance.round_s = round_seconds(instance.mix);
    result_.highest_memory_share = std::max(result_.highest_memory_share, instance.in_use.highest_share());
    double least = never;
    for (const int64_t each : instance.jobs) {
      const Job& job = jobs_[static_cast<size_t>(each)];
      least = std::min(least, seconds_left(instance, job));
    }
    instance.next_finish_s = now_ + least;
  }
}

double TraceSimulator::round_seconds(const JobMix& mix) {
  const double seconds = rates_.round_seconds(mix);
  COTUNE_CHECK(seconds > 0 && std::isfinite(seconds), "a round of {} jobs takes {} s", mix.job_count(), seconds);
  return seconds;
}

// --- the end ---

void TraceSimulator::refuse_the_rest() {
  while (waiting_.size() > 0) {
    const Job& job = jobs_[static_cast<size_t>(waiting_.groups().begin()->second.begin()->job)];
    COTUNE_CHECK(options_.refuse_late, "job {} waits with nothing running", job.facts.job);
    stop_waiting(job);
    refuse(job, "could keep its deadline on no instance");
  }
}

void TraceSimulator::finish_up() {
  result_.end_s = now_;
  if (window_is_open_) result_.window_s = now_;
  for (const TenantFacts& tenant : tenants_) result_.tenant_service_s.push_back(tenant.service_s);
  // Evenly spaced points out of all that were seen.
  std::vector<ClusterSample> even;
  size_t place = 0;
  for (int64_t i = 0; i < options_.samples && !result_.timeline.empty(); ++i) {
    const double time_s = options_.samples > 1 ? now_ * static_cast<double>(i) / static_cast<double>(options_.samples - 1) : 0;
    while (place + 1 < result_.timeline.size() && result_.timeline[place + 1].time_s <= time_s) ++place;
    ClusterSample sample = result_.timeline[place];
    if (sample.time_s > time_s) sample = {};
    sample.time_s = time_s;
    even.push_back(sample);
  }
  result_.timeline = std::move(even);
}

void TraceSimulator::sample() {
  ClusterSample now{now_, 0, waiting_.size(), 0};
  for (const Instance& instance : instances_) {
    now.running_jobs += static_cast<int64_t>(instance.jobs.size());
    now.busy_instances += instance.jobs.empty() ? 0 : 1;
  }
  result_.timeline.push_back(now);
}

WaitingGroup TraceSimulator::group_of(const Job& job) const {
  return {policy_.orders_tenants() ? job.tenant : 0, job.facts.kind, job.dedicated};
}

int64_t planned_steps(const TraceJob& job, double alone_round_s) {
  return std::max<int64_t>(1, std::llround(job.duration_s / alone_round_s));
}

int64_t trained_steps(const TraceJob& job, int64_t planned) {
  return std::clamp<int64_t>(static_cast<int64_t>(std::ceil(job.stops_after * static_cast<double>(planned))), 1, planned);
}

TraceSimulation simulate_trace(const Trace& trace, SchedulingPolicy& policy, RoundRates& rates,
                               const InstanceMemory& memory, const std::vector<double>& dedicated_round_s,
                               const TraceOptions& options) {
  return TraceSimulator(trace, policy, rates, memory, dedicated_round_s, options).run();
}

}  // namespace cotune
