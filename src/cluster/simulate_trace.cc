#include "cluster/simulate_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "cluster/waiting_jobs.h"

namespace cotune {
namespace {

constexpr double never = std::numeric_limits<double>::infinity();

struct Instance {
  explicit Instance(const InstanceMemory& memory) : in_use(memory) {}

  JobMix mix;
  std::vector<int64_t> jobs;  // in the order they came
  MemoryInUse in_use;
  bool dedicated = false;     // its one job shares with nobody
  bool changed = false;       // the mix, since the round's seconds were asked for
  double round_s = 0;
  double rounds = 0;          // since the beginning; the clock of its jobs
  double tokens_of_round = 0;
  double until_s = 0;         // how far it was advanced
  double next_finish_s = never;
};

struct Job {
  JobFacts facts;             // remaining_s as of `done` while it waits
  int32_t tenant = 0;
  bool dedicated = false;
  double alone_s = 0;         // of a step, on an instance of its own
  int64_t planned = 0;        // steps, were it not to stop early
  double done = 0;            // steps, whole ones when it does not run
  double restart = 0;         // rounds that it spends first
  int64_t instance = -1;
  double from_rounds = 0;     // of its instance, when it came
  double came_s = 0;          // on its instance, or into the queue
};

class TraceSimulator {
 public:
  TraceSimulator(const Trace& trace, SchedulingPolicy& policy, RoundRates& rates, const InstanceMemory& memory,
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
      const auto share = static_cast<int64_t>(std::ceil(each.stops_after * static_cast<double>(job.planned)));
      result_.jobs[i].steps = std::clamp<int64_t>(share, 1, job.planned);
    }
    const double last_arrival_s = trace.jobs.empty() ? 0 : trace.jobs.back().arrival_s;
    result_.window_s = options.window_s > 0 ? options.window_s : last_arrival_s;
    window_is_open_ = result_.window_s == 0;
  }

  TraceSimulation run() {
    size_t arrived = 0;
    while (true) {
      const double arrival_s = arrived < trace_.jobs.size() ? trace_.jobs[arrived].arrival_s : never;
      double finish_s = never;
      for (const Instance& instance : instances_) finish_s = std::min(finish_s, instance.next_finish_s);
      const double next_s = std::min(arrival_s, finish_s);
      if (next_s == never) break;
      now_ = std::max(now_, next_s);
      for (size_t i = 0; i < instances_.size(); ++i) {
        if (instances_[i].next_finish_s <= now_) finish_jobs(i);
      }
      for (; arrived < trace_.jobs.size() && trace_.jobs[arrived].arrival_s <= now_; ++arrived) arrive(arrived);
      schedule();
      refresh();
      sample();
    }
    refuse_the_rest();
    finish_up();
    return std::move(result_);
  }

 private:
  // --- the clock of an instance ---

  void advance(Instance& instance) {
    const double seconds = now_ - instance.until_s;
    if (seconds > 0 && !instance.mix.empty()) {
      instance.rounds += seconds / instance.round_s;
      const double in_window = window_is_open_ ? seconds : std::clamp(result_.window_s - instance.until_s, 0.0, seconds);
      const auto count = static_cast<double>(instance.jobs.size());
      result_.window_tokens += instance.tokens_of_round * in_window / instance.round_s;
      result_.window_busy_s += in_window;
      result_.window_running_s += in_window * count;
      for (const int64_t job : instance.jobs) tenant_of(job).service_s += seconds / count;
    }
    instance.until_s = now_;
  }

  /// Rounds that a job spends until it is through.
  double rounds_left(const Job& job) const {
    const auto steps = static_cast<double>(result_.jobs[static_cast<size_t>(job.facts.job)].steps);
    double passed = 0;
    if (job.instance >= 0) passed = instances_[static_cast<size_t>(job.instance)].rounds - job.from_rounds;
    return steps - job.done + job.restart - passed;
  }

  /// As a scheduler sees it: that the job might stop early is not known.
  JobFacts facts_now(const Job& job) const {
    JobFacts facts = job.facts;
    const auto hidden = static_cast<double>(job.planned - result_.jobs[static_cast<size_t>(job.facts.job)].steps);
    facts.remaining_s = std::max(0.0, rounds_left(job) + hidden) * job.alone_s;
    return facts;
  }

  // --- events ---

  void record(TraceEventKind kind, int64_t job, int64_t instance = -1) {
    result_.events.push_back({now_, kind, job, instance});
  }

  void arrive(size_t index) {
    Job& job = jobs_[index];
    record(TraceEventKind::arrive, job.facts.job);
    if (!MemoryInUse(memory_).fits(job.facts.kind)) {
      refuse(job, "does not fit into the memory of an instance, even alone");
      return;
    }
    wait(job);
  }

  void wait(Job& job) {
    job.came_s = now_;
    job.facts = facts_now(job);
    waiting_.add(group_of(job), place_of(job));
  }

  void start(Job& job, size_t index) {
    Instance& instance = instances_[index];
    advance(instance);
    waiting_.remove(group_of(job), place_of(job));
    instance.mix.add(job.facts.kind);
    instance.jobs.push_back(job.facts.job);
    instance.dedicated = job.dedicated;
    job.instance = static_cast<int64_t>(index);
    job.from_rounds = instance.rounds;
    job.came_s = now_;
    tenant_of(job.facts.job).running_jobs += 1;
    JobOutcome& outcome = outcome_of(job);
    outcome.started_s = std::min(outcome.started_s, now_);
    outcome.restart_rounds += job.restart;
    change(instance);
    record(TraceEventKind::start, job.facts.job, job.instance);
  }

  /// Takes a job off its instance, which has been advanced.
  void take_off(Job& job) {
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

  void preempt(Job& job) {
    Instance& instance = instances_[static_cast<size_t>(job.instance)];
    advance(instance);
    take_off(job);
    JobOutcome& outcome = outcome_of(job);
    const double passed = instance.rounds - job.from_rounds;
    const double made = std::max(0.0, passed - job.restart);
    // A moment before the end of a step is its end.
    const double kept = std::min(std::floor(made + 1e-6), static_cast<double>(outcome.steps) - job.done);
    outcome.lost_steps += made - kept;
    outcome.restart_rounds -= std::max(0.0, job.restart - passed);  // what it did not come to
    outcome.preemptions += 1;
    job.done += kept;
    job.restart = options_.restart_s / job.alone_s;
    record(TraceEventKind::preempt, job.facts.job, job.instance);
    job.instance = -1;
    wait(job);
  }

  void finish_jobs(size_t index) {
    Instance& instance = instances_[index];
    advance(instance);
    std::vector<int64_t> through;
    const auto tolerance = 1e-9 * std::max(1.0, instance.rounds);
    double least = never;
    for (const int64_t job : instance.jobs) least = std::min(least, rounds_left(jobs_[static_cast<size_t>(job)]));
    // The one with the least left is through by now, whatever rounding says.
    for (const int64_t job : instance.jobs) {
      if (rounds_left(jobs_[static_cast<size_t>(job)]) <= std::max(least, 0.0) + tolerance) through.push_back(job);
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

  void refuse(const Job& job, std::string why) {
    outcome_of(job).refusal = std::move(why);
    record(TraceEventKind::refuse, job.facts.job);
  }

  void change(Instance& instance) {
    instance.changed = true;
    instance.in_use.set(instance.mix);
  }

  /// New rounds for the instances whose mix is another.
  void refresh() {
    for (Instance& instance : instances_) {
      if (!instance.changed) continue;
      instance.changed = false;
      instance.until_s = now_;
      instance.next_finish_s = never;
      instance.tokens_of_round = 0;
      if (instance.mix.empty()) continue;
      result_.rate_changes += 1;
      instance.round_s = round_seconds(instance.mix);
      result_.highest_memory_share = std::max(result_.highest_memory_share, instance.in_use.highest_share());
      double least = never;
      for (const int64_t each : instance.jobs) {
        const Job& job = jobs_[static_cast<size_t>(each)];
        least = std::min(least, rounds_left(job));
        instance.tokens_of_round += static_cast<double>(trace_.kinds[static_cast<size_t>(job.facts.kind)].step_tokens());
      }
      instance.next_finish_s = now_ + std::max(0.0, least) * instance.round_s;
    }
  }

  double round_seconds(const JobMix& mix) {
    const double seconds = rates_.round_seconds(mix);
    COTUNE_CHECK(seconds > 0 && std::isfinite(seconds), "a round of {} jobs takes {} s", mix.job_count(), seconds);
    return seconds;
  }

  // --- scheduling ---

  void schedule() {
    if (waiting_.size() == 0) return;
    if (policy_.orders_tenants()) {
      for (Instance& instance : instances_) advance(instance);
    }
    if (options_.refuse_late) refuse_late();
    if (policy_.values_placements()) {
      while (place_best()) {
      }
      return;
    }
    while (place_first() || (policy_.is_preemptive() && make_room())) {
    }
  }

  /// The first job of every group, in the order of the policy.
  std::vector<int64_t> heads() const {
    std::vector<std::tuple<double, double, double, int64_t>> order;  // tenant's rank, rank, arrival, job
    for (const auto& [group, places] : waiting_.groups()) {
      const WaitingPlace& first = *places.begin();
      const int32_t tenant = jobs_[static_cast<size_t>(first.job)].tenant;
      const double tenant_rank = policy_.orders_tenants() ? policy_.tenant_rank(tenants_[static_cast<size_t>(tenant)]) : 0;
      order.emplace_back(tenant_rank, first.rank, first.arrival_s, first.job);
    }
    std::sort(order.begin(), order.end());
    std::vector<int64_t> jobs;
    for (const auto& each : order) jobs.push_back(std::get<3>(each));
    return jobs;
  }

  bool has_room(const Instance& instance, const Job& job) const {
    if (!instance.jobs.empty() && (job.dedicated || instance.dedicated)) return false;
    if (options_.most_jobs > 0 && static_cast<int64_t>(instance.jobs.size()) >= options_.most_jobs) return false;
    return instance.in_use.fits(job.facts.kind);
  }

  /// Whether everybody's predicted end there keeps its deadline.
  bool keeps_deadlines(const Instance& instance, const Job& job) {
    if (!options_.refuse_late) return true;
    JobMix joint = instance.mix;
    joint.add(job.facts.kind);
    const double round_s = round_seconds(joint);
    const auto is_late = [&](const Job& each, double more_rounds) {
      const double end_s = now_ + (facts_now(each).remaining_s / each.alone_s - more_rounds) * round_s;
      return end_s > each.facts.deadline_s * (1 + 1e-12);
    };
    if (is_late(job, 0)) return false;
    const double since = instance.mix.empty() || instance.changed ? 0 : (now_ - instance.until_s) / instance.round_s;
    return std::none_of(instance.jobs.begin(), instance.jobs.end(),
                        [&](int64_t each) { return is_late(jobs_[static_cast<size_t>(each)], since); });
  }

  /// Starts the first job, in the order of the policy, that fits somewhere: where the fewest jobs are.
  bool place_first() {
    std::vector<int64_t> order = heads();
    for (const int64_t each : order) {
      Job& job = jobs_[static_cast<size_t>(each)];
      std::vector<size_t> places;
      for (size_t i = 0; i < instances_.size(); ++i) {
        if (has_room(instances_[i], job)) places.push_back(i);
      }
      std::stable_sort(places.begin(), places.end(),
                       [&](size_t a, size_t b) { return instances_[a].jobs.size() < instances_[b].jobs.size(); });
      for (const size_t i : places) {
        if (!keeps_deadlines(instances_[i], job)) continue;
        start(job, i);
        return true;
      }
    }
    return false;
  }

  /// Starts the job at the place of highest value.
  bool place_best() {
    double best = -never;
    Job* best_job = nullptr;
    size_t best_place = 0;
    for (const int64_t each : heads()) {
      Job& job = jobs_[static_cast<size_t>(each)];
      bool empty_seen = false;
      for (size_t i = 0; i < instances_.size(); ++i) {
        // Empty instances are alike.
        if (instances_[i].jobs.empty() && std::exchange(empty_seen, true)) continue;
        if (!has_room(instances_[i], job)) continue;
        const double value = policy_.placement_value({&instances_[i].mix, job.facts.kind, now_ - job.came_s});
        if (value > best && keeps_deadlines(instances_[i], job)) {
          best = value;
          best_job = &job;
          best_place = i;
        }
      }
    }
    if (best_job == nullptr) return false;
    start(*best_job, best_place);
    return true;
  }

  Contender contender(const Job& job) const {
    return {facts_now(job), tenants_[static_cast<size_t>(job.tenant)]};
  }

  /// Pushes out jobs for the first waiting one that may do so: on the instance where the fewest have to go, the last of the
  /// policy's order first.
  bool make_room() {
    for (Instance& instance : instances_) advance(instance);
    for (const int64_t each : heads()) {
      Job& job = jobs_[static_cast<size_t>(each)];
      const Contender waiting = contender(job);
      bool may_push_out = false;
      std::vector<int64_t> fewest;
      size_t place = 0;
      for (size_t i = 0; i < instances_.size(); ++i) {
        bool any = false;
        const std::vector<int64_t> victims = victims_on(instances_[i], job, waiting, any);
        may_push_out = may_push_out || any;
        if (!victims.empty() && (fewest.empty() || victims.size() < fewest.size())) {
          fewest = victims;
          place = i;
        }
      }
      if (!fewest.empty()) {
        for (const int64_t victim : fewest) preempt(jobs_[static_cast<size_t>(victim)]);
        start(job, place);
        return true;
      }
      // Who stands behind one that may push out nobody may push out nobody either.
      if (!may_push_out) return false;
    }
    return false;
  }

  /// The jobs that have to leave an instance so that `job` fits; none where that cannot be.
  std::vector<int64_t> victims_on(const Instance& instance, const Job& job, const Contender& waiting, bool& any) {
    std::vector<std::tuple<double, double, double, int64_t>> may_go;
    for (const int64_t each : instance.jobs) {
      const Job& running = jobs_[static_cast<size_t>(each)];
      if (options_.refuse_late && running.facts.deadline_s < never) continue;
      const Contender other = contender(running);
      if (!policy_.preempts(waiting, other)) continue;
      may_go.emplace_back(policy_.orders_tenants() ? policy_.tenant_rank(other.tenant) : 0, policy_.rank(other.job),
                          other.job.arrival_s, each);
    }
    any = !may_go.empty();
    if (!any) return {};
    std::sort(may_go.rbegin(), may_go.rend());
    Instance after = instance;
    std::vector<int64_t> victims;
    for (const auto& candidate : may_go) {
      const int64_t each = std::get<3>(candidate);
      victims.push_back(each);
      after.jobs.erase(std::find(after.jobs.begin(), after.jobs.end(), each));
      after.mix.remove(jobs_[static_cast<size_t>(each)].facts.kind);
      after.in_use.set(after.mix);
      after.dedicated = after.dedicated && !after.jobs.empty();
      after.changed = true;
      if (has_room(after, job) && keeps_deadlines(after, job)) return victims;
    }
    return {};
  }

  /// Refuses the first jobs of the queue that could not keep their deadline any more, even alone from now on.
  void refuse_late() {
    for (const int64_t each : heads()) {
      WaitingGroup group = group_of(jobs_[static_cast<size_t>(each)]);
      while (waiting_.groups().count(group) > 0) {
        const Job& first = jobs_[static_cast<size_t>(waiting_.groups().at(group).begin()->job)];
        if (now_ + first.facts.remaining_s <= first.facts.deadline_s * (1 + 1e-12)) break;
        waiting_.remove(group, place_of(first));
        refuse(first, "could not keep its deadline any more");
      }
    }
  }

  // --- the end ---

  /// With nothing running and nothing to come, what waits can never start: no deadline of it can be kept.
  void refuse_the_rest() {
    while (waiting_.size() > 0) {
      const auto& [group, places] = *waiting_.groups().begin();
      const Job& job = jobs_[static_cast<size_t>(places.begin()->job)];
      COTUNE_CHECK(options_.refuse_late, "job {} waits with nothing running", job.facts.job);
      waiting_.remove(WaitingGroup(group), place_of(job));
      refuse(job, "could keep its deadline on no instance");
    }
  }

  void finish_up() {
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

  void sample() {
    ClusterSample now{now_, 0, waiting_.size(), 0};
    for (const Instance& instance : instances_) {
      now.running_jobs += static_cast<int64_t>(instance.jobs.size());
      now.busy_instances += instance.jobs.empty() ? 0 : 1;
    }
    result_.timeline.push_back(now);
  }

  WaitingGroup group_of(const Job& job) const {
    return {policy_.orders_tenants() ? job.tenant : 0, job.facts.kind, job.dedicated};
  }
  WaitingPlace place_of(const Job& job) const { return {policy_.rank(job.facts), job.facts.arrival_s, job.facts.job}; }
  JobOutcome& outcome_of(const Job& job) { return result_.jobs[static_cast<size_t>(job.facts.job)]; }
  TenantFacts& tenant_of(int64_t job) { return tenants_[static_cast<size_t>(jobs_[static_cast<size_t>(job)].tenant)]; }

  const Trace& trace_;
  SchedulingPolicy& policy_;
  RoundRates& rates_;
  const InstanceMemory& memory_;
  const TraceOptions& options_;
  double now_ = 0;
  bool window_is_open_ = false;  // it ends with the simulation
  std::vector<Instance> instances_;
  std::vector<Job> jobs_;
  std::vector<TenantFacts> tenants_;
  WaitingJobs waiting_;
  TraceSimulation result_;
};

}  // namespace

std::string_view to_string(TraceEventKind kind) {
  switch (kind) {
    case TraceEventKind::arrive:
      return "arrive";
    case TraceEventKind::start:
      return "start";
    case TraceEventKind::preempt:
      return "preempt";
    case TraceEventKind::finish:
      return "finish";
    case TraceEventKind::refuse:
      break;
  }
  return "refuse";
}

int64_t planned_steps(const TraceJob& job, double alone_round_s) {
  return std::max<int64_t>(1, std::llround(job.duration_s / alone_round_s));
}

TraceSimulation simulate_trace(const Trace& trace, SchedulingPolicy& policy, RoundRates& rates,
                               const InstanceMemory& memory, const std::vector<double>& dedicated_round_s,
                               const TraceOptions& options) {
  return TraceSimulator(trace, policy, rates, memory, dedicated_round_s, options).run();
}

}  // namespace cotune
