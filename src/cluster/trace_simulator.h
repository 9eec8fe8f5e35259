/// The state of simulate_trace and what happens to it: events (simulate_trace.cc) and who starts where (trace_scheduling.cc).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/never.h"
#include "cluster/simulate_trace.h"
#include "cluster/waiting_jobs.h"

namespace cotune {

class TraceSimulator {
 public:
  TraceSimulator(const Trace& trace, SchedulingPolicy& policy, RoundRates& rates, const InstanceMemory& memory,
                 const std::vector<double>& dedicated_round_s, const TraceOptions& options);
  TraceSimulation run();

 private:
  struct Instance {
    explicit Instance(const InstanceMemory& memory) : in_use(memory) {}

    JobMix mix;
    std::vector<int64_t> jobs;  // in the order they came
    MemoryInUse in_use;
    bool dedicated = false;     // its one job shares with nobody
    bool changed = false;       // the mix, since the round's seconds were asked for
    double round_s = 0;
    double rounds = 0;          // since the beginning; the clock of its jobs
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
    double restart_s = 0;       // that it spends first, on an instance
    int64_t instance = -1;
    double from_rounds = 0;     // of its instance, when it came; moved on while it restarts
    double came_s = 0;          // on its instance, or into the queue
  };

  // --- the clock of an instance ---

  void advance(Instance& instance);
  /// Steps that a job still makes.
  double rounds_left(const Job& job) const;
  /// Until it is through, on the instance where it runs, as long as nobody comes or leaves.
  double seconds_left(const Instance& instance, const Job& job) const;
  /// As a scheduler sees it: that the job might stop early is not known.
  JobFacts facts_now(const Job& job) const;

  // --- events ---

  void record(TraceEventKind kind, int64_t job, int64_t instance = -1);
  void arrive(size_t index);
  void wait(Job& job);
  void stop_waiting(const Job& job);
  void start(Job& job, size_t index);
  /// Takes a job off its instance, which has been advanced.
  void take_off(Job& job);
  void preempt(Job& job);
  void finish_jobs(size_t index);
  void refuse(const Job& job, std::string why);
  void change(Instance& instance);
  /// New rounds for the instances whose mix is another.
  void refresh();
  double round_seconds(const JobMix& mix);

  // --- scheduling ---

  void schedule();
  /// The first job of every group, in the order of the policy.
  std::vector<int64_t> heads() const;
  bool has_room(const Instance& instance, const Job& job) const;
  enum class Deadlines { kept, own_missed, others_missed };
  /// What becomes of everybody's deadline there, by predicted ends, if the job comes.
  Deadlines deadlines_with(const Instance& instance, const Job& job);
  /// The one that waits behind it in its group.
  std::optional<int64_t> next_of_group(const Job& job) const;
  /// Starts it where the fewest jobs are; `is_late` is set where it found room and would miss its deadline.
  bool place(Job& job, bool& is_late);
  /// Whoever has waited beyond the policy's patience, longest of all, and finds room nowhere gets the instance that has some soonest kept
  /// free of others until it starts; one at a time.
  void hold_an_instance();
  /// Roughly: until enough of its jobs have ended for the job.
  double room_after_s(const Instance& instance, const Job& job) const;
  /// Starts the first job, in the order of the policy, that fits somewhere: where the fewest jobs are.
  bool place_first();
  /// Starts the job at the place of highest value.
  bool place_best();
  Contender contender(const Job& job) const;
  /// Pushes out jobs for the first waiting one that may do so: on the instance where the fewest have to go, the last of the
  /// policy's order first.
  bool make_room();
  /// When a tenant that waits comes to stand so far behind one that runs that it may push out its jobs, as long as nobody comes or leaves.
  double next_lead_s() const;
  /// The jobs that have to leave an instance so that `job` fits; none where that cannot be.
  std::vector<int64_t> victims_on(const Instance& instance, const Job& job, const Contender& waiting, bool& any);
  /// Refuses the first jobs of the queue that could not keep their deadline any more, even alone from now on.
  void refuse_late();

  // --- the end ---

  /// With nothing running and nothing to come, what waits can never start: no deadline of it can be kept.
  void refuse_the_rest();
  void finish_up();
  void sample();
  WaitingGroup group_of(const Job& job) const;
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
  int64_t held_for_ = -1;  // job that an instance is held for; -1: none is
  size_t held_instance_ = 0;
  TraceSimulation result_;
};

}  // namespace cotune
