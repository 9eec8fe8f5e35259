/// Which job runs next, and where (MX-43, ML-22): one interface, one file per policy in policies/.
///
/// The simulator (simulate_trace.h) keeps the queue, asks the policy for an order, and starts whatever fits, in that order;
/// a job that does not fit lets later ones pass (backfill), unless it has waited beyond the policy's patience. None can break memory
/// limits. Among jobs of one kind without deadlines the order of the policy is kept exactly.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/never.h"
#include "cluster/job_kind.h"

namespace cotune {

/// A job as a policy sees it.
struct JobFacts {
  int64_t job = 0;  ///< index in the trace
  int32_t kind = 0;
  int64_t priority = 0;
  double arrival_s = 0;
  double deadline_s = 0;   ///< infinite: none
  double remaining_s = 0;  ///< of its steps, alone on an instance; that it might stop early is not known
};

/// A tenant as a policy sees it.
struct TenantFacts {
  double service_s = 0;      ///< seconds of instances so far; jobs on one instance share its seconds equally
  int64_t running_jobs = 0;
};

/// A job with its tenant.
struct Contender {
  JobFacts job;
  TenantFacts tenant;
};

/// Where a job could go: an instance by what is on it.
struct PlacementOption {
  const JobMix* residents = nullptr;
  int32_t kind = 0;  ///< of the job
  double waited_s = 0;
};

class SchedulingPolicy {
 public:
  virtual ~SchedulingPolicy() = default;
  virtual std::string_view name() const = 0;

  /// Lower goes first; then earlier arrivals, then lower indices. Does not change while a job waits.
  virtual double rank(const JobFacts& job) const = 0;
  /// Compared before rank where tenants are told apart. Lower goes first.
  virtual bool orders_tenants() const { return false; }
  /// Grows by one with every second of service, if it grows with it.
  virtual double tenant_rank(const TenantFacts&) const { return 0; }
  /// By how much the rank of a tenant must be lower than another's for its jobs to push out the other's; infinite: it does not go by that.
  virtual double tenant_lead() const { return never; }

  /// Whether a job that waits may push out one that runs. Must be a strict order, so that no two push each other out, and
  /// agree with the order above: who comes later may push out no more.
  virtual bool is_preemptive() const { return false; }
  virtual bool preempts(const Contender& waiting, const Contender& running) const;

  /// How long a job waits before the simulator holds an instance for it, which nobody else then joins; infinite: for ever.
  virtual double patience_s() const { return never; }

  /// Policies that choose job and place together say what each placement is worth; the highest goes first. The others place
  /// the first job of their order where the fewest jobs are.
  virtual bool values_placements() const { return false; }
  virtual double placement_value(const PlacementOption&) { return 0; }
};

/// What values placements: predicted seconds of a round of a mix. Has to be cheap: it is asked for every kind that waits on
/// every instance.
class RoundPredictor {
 public:
  virtual ~RoundPredictor() = default;
  virtual double predicted_round_seconds(const JobMix& mix) const = 0;
};

// Makers of the policies, one file each.
std::unique_ptr<SchedulingPolicy> first_come_first_served();
std::unique_ptr<SchedulingPolicy> highest_priority();
std::unique_ptr<SchedulingPolicy> shortest_remaining();
std::unique_ptr<SchedulingPolicy> fair_share();
std::unique_ptr<SchedulingPolicy> earliest_deadline();
/// The predictor must outlive the policy.
std::unique_ptr<SchedulingPolicy> multiplexing_aware(const RoundPredictor& predictor, size_t kind_count);

/// fcfs, priority, shortest, fair, deadline, multiplexing. Throws UserError that lists them for another name.
std::unique_ptr<SchedulingPolicy> make_policy(const std::string& name, const RoundPredictor& predictor, size_t kind_count);
std::vector<std::string> policy_names();

}  // namespace cotune
