#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "cluster/trace_simulator.h"

namespace cotune {

void TraceSimulator::schedule() {
  if (waiting_.size() == 0) return;
  if (policy_.orders_tenants()) {
    for (Instance& instance : instances_) advance(instance);
  }
  if (options_.refuse_late) refuse_late();
  if (policy_.values_placements()) {
    while (place_best()) {
    }
  } else {
    while (place_first() || (policy_.is_preemptive() && make_room())) {
    }
  }
  hold_an_instance();
}

double TraceSimulator::room_after_s(const Instance& instance, const Job& job) const {
  std::vector<std::pair<double, int64_t>> ends;
  for (const int64_t each : instance.jobs) {
    const Job& running = jobs_[static_cast<size_t>(each)];
    ends.emplace_back(running.restart_s + std::max(0.0, rounds_left(running)) * running.alone_s, each);
  }
  std::sort(ends.begin(), ends.end());
  Instance after = instance;
  double busy_s = 0;
  for (const auto& [left_s, each] : ends) {
    busy_s += left_s;  // as if they shared its time
    after.jobs.erase(std::find(after.jobs.begin(), after.jobs.end(), each));
    after.mix.remove(jobs_[static_cast<size_t>(each)].facts.kind);
    after.in_use.set(after.mix);
    after.dedicated = after.dedicated && !after.jobs.empty();
    if (has_room(after, job)) break;
  }
  return busy_s;
}

void TraceSimulator::hold_an_instance() {
  if (held_for_ >= 0) return;
  const Job* longest = nullptr;
  for (const int64_t each : heads()) {
    const Job& job = jobs_[static_cast<size_t>(each)];
    if (now_ - job.came_s > policy_.patience_s() && (longest == nullptr || job.came_s < longest->came_s)) longest = &job;
  }
  if (longest == nullptr) return;
  const auto has_place = [&](const Instance& instance) { return has_room(instance, *longest); };
  if (std::any_of(instances_.begin(), instances_.end(), has_place)) return;  // it waits for its deadline's sake
  double soonest_s = never;
  for (size_t i = 0; i < instances_.size(); ++i) {
    const double after_s = room_after_s(instances_[i], *longest);
    if (after_s >= soonest_s) continue;
    soonest_s = after_s;
    held_instance_ = i;
  }
  held_for_ = longest->facts.job;
}

std::vector<int64_t> TraceSimulator::heads() const {
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

std::optional<int64_t> TraceSimulator::next_of_group(const Job& job) const {
  const std::set<WaitingPlace>& places = waiting_.groups().at(group_of(job));
  const auto after = places.upper_bound(place_of(job));
  return after == places.end() ? std::nullopt : std::optional(after->job);
}

bool TraceSimulator::has_room(const Instance& instance, const Job& job) const {
  if (held_for_ >= 0 && held_for_ != job.facts.job && &instance == &instances_[held_instance_]) return false;
  if (!instance.jobs.empty() && (job.dedicated || instance.dedicated)) return false;
  if (options_.most_jobs > 0 && static_cast<int64_t>(instance.jobs.size()) >= options_.most_jobs) return false;
  return instance.in_use.fits(job.facts.kind);
}

TraceSimulator::Deadlines TraceSimulator::deadlines_with(const Instance& instance, const Job& job) {
  if (!options_.refuse_late) return Deadlines::kept;
  JobMix joint = instance.mix;
  joint.add(job.facts.kind);
  const double round_s = round_seconds(joint);
  const auto is_late = [&](const Job& each, double more_rounds) {
    const double end_s = now_ + (facts_now(each).remaining_s / each.alone_s - more_rounds) * round_s;
    return end_s > each.facts.deadline_s * (1 + 1e-12);
  };
  if (is_late(job, 0)) return Deadlines::own_missed;
  const double since = instance.mix.empty() || instance.changed ? 0 : (now_ - instance.until_s) / instance.round_s;
  const bool any =
      std::any_of(instance.jobs.begin(), instance.jobs.end(), [&](int64_t each) { return is_late(jobs_[static_cast<size_t>(each)], since); });
  return any ? Deadlines::others_missed : Deadlines::kept;
}

bool TraceSimulator::place(Job& job, bool& is_late) {
  std::vector<size_t> places;
  for (size_t i = 0; i < instances_.size(); ++i) {
    if (has_room(instances_[i], job)) places.push_back(i);
  }
  std::stable_sort(places.begin(), places.end(),
                   [&](size_t a, size_t b) { return instances_[a].jobs.size() < instances_[b].jobs.size(); });
  for (const size_t i : places) {
    const Deadlines deadlines = deadlines_with(instances_[i], job);
    is_late = is_late || deadlines == Deadlines::own_missed;
    if (deadlines != Deadlines::kept) continue;
    start(job, i);
    return true;
  }
  return false;
}

bool TraceSimulator::place_first() {
  for (const int64_t head : heads()) {
    // Where the deadline of one keeps it out, the next one of its sort may still fit.
    for (std::optional<int64_t> each = head; each;) {
      Job& job = jobs_[static_cast<size_t>(*each)];
      bool is_late = false;
      if (place(job, is_late)) return true;
      each = is_late ? next_of_group(job) : std::nullopt;
    }
  }
  return false;
}

bool TraceSimulator::place_best() {
  double best = -never;
  Job* best_job = nullptr;
  size_t best_place = 0;
  for (const int64_t head : heads()) {
    for (std::optional<int64_t> each = head; each;) {
      Job& job = jobs_[static_cast<size_t>(*each)];
      bool empty_seen = false, is_late = false;
      for (size_t i = 0; i < instances_.size(); ++i) {
        if (!has_room(instances_[i], job)) continue;
        // Empty instances are alike.
        if (instances_[i].jobs.empty() && std::exchange(empty_seen, true)) continue;
        const double value = policy_.placement_value({&instances_[i].mix, job.facts.kind, now_ - job.came_s});
        if (value <= best) continue;
        const Deadlines deadlines = deadlines_with(instances_[i], job);
        is_late = is_late || deadlines == Deadlines::own_missed;
        if (deadlines != Deadlines::kept) continue;
        best = value;
        best_job = &job;
        best_place = i;
      }
      each = is_late ? next_of_group(job) : std::nullopt;
    }
  }
  if (best_job == nullptr) return false;
  start(*best_job, best_place);
  return true;
}

Contender TraceSimulator::contender(const Job& job) const {
  return {facts_now(job), tenants_[static_cast<size_t>(job.tenant)]};
}

bool TraceSimulator::make_room() {
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

double TraceSimulator::next_lead_s() const {
  const double lead = policy_.tenant_lead();
  if (lead == never || waiting_.size() == 0) return never;
  std::vector<double> growth(tenants_.size(), 0);  // of service, seconds a second
  for (const Instance& instance : instances_) {
    for (const int64_t each : instance.jobs)
      growth[static_cast<size_t>(jobs_[static_cast<size_t>(each)].tenant)] += 1 / static_cast<double>(instance.jobs.size());
  }
  constexpr double beyond_s = 1e-3;  // of service, that rounding does not take
  double soonest_s = never;
  for (const int64_t head : heads()) {
    const auto behind = static_cast<size_t>(jobs_[static_cast<size_t>(head)].tenant);
    for (size_t ahead = 0; ahead < tenants_.size(); ++ahead) {
      const double gap_s = policy_.tenant_rank(tenants_[behind]) + lead - policy_.tenant_rank(tenants_[ahead]);
      const double closing = growth[ahead] - growth[behind];
      if (tenants_[ahead].running_jobs > 0 && gap_s >= 0 && closing > 0) soonest_s = std::min(soonest_s, now_ + (gap_s + beyond_s) / closing);
    }
  }
  return soonest_s;
}

std::vector<int64_t> TraceSimulator::victims_on(const Instance& instance, const Job& job, const Contender& waiting, bool& any) {
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
    if (has_room(after, job) && deadlines_with(after, job) == Deadlines::kept) return victims;
  }
  return {};
}

void TraceSimulator::refuse_late() {
  for (const int64_t each : heads()) {
    WaitingGroup group = group_of(jobs_[static_cast<size_t>(each)]);
    while (waiting_.groups().count(group) > 0) {
      const Job& first = jobs_[static_cast<size_t>(waiting_.groups().at(group).begin()->job)];
      if (now_ + first.facts.remaining_s <= first.facts.deadline_s * (1 + 1e-12)) break;
      stop_waiting(first);
      refuse(first, "could not keep its deadline any more");
    }
  }
}

}  // namespace cotune
