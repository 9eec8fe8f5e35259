/// A trace under several scheduling and sharing policies: what `cotune simulate` runs.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cluster/instance.h"
#include "cluster/rate_table.h"
#include "cluster/trace_report.h"

namespace cotune {

/// A sharing policy with the layout of rows: `hybrid`, `batch-all/padded` (SL-PEFT), …
struct SharingChoice {
  Sharing sharing = Sharing::hybrid;
  Layout layout = Layout::ragged;
  std::string name() const;
  bool operator==(const SharingChoice&) const = default;
};
/// NAME or NAME/LAYOUT, layouts ragged and padded. Throws UserError that lists what there is.
SharingChoice parse_sharing(const std::string& text);
/// What it takes, without /ragged.
std::vector<std::string> sharing_choices();

struct StudySettings {
  std::vector<std::string> policies = {"fcfs"};
  std::vector<SharingChoice> sharings = {{}};
  bool use_table = false;          ///< rates from a table that is made first, in place of the planner in the loop
  std::string rates_file;          ///< a table that was saved; for one sharing. Empty: none
  std::string save_rates;          ///< where to write the table; for one sharing
  TraceOptions options;            ///< instances are those of the cluster; most_jobs is 1 under `separate`
};

/// One combination.
struct StudyResult {
  TraceSummary summary;
  TraceSimulation simulation;
};

/// Every sharing with every policy, sharings outermost. `finished`, when set, is called after each. Durations of the trace
/// are taken as on a dedicated instance: separate, ragged, by the planner.
std::vector<StudyResult> run_study(const Trace& trace, const InstancesOfCluster& instances, const StudySettings& settings,
                                   const std::function<void(const StudyResult&)>& finished = nullptr);

/// Per kind: seconds of a step of such a job alone on an instance, separate and ragged, by the planner. Infinite for what fits on none.
std::vector<double> dedicated_rounds(const InstanceSpec& instance, const std::vector<JobKind>& kinds);

/// The fewest microbatches of a step, of 1, 2, 4, … times the instance's, at most one a row, with which a job of each of these kinds fits on an
/// instance alone; none: no number of them helps.
std::optional<int64_t> microbatches_that_fit(const InstanceSpec& instance, const std::vector<JobKind>& kinds);

/// An instance on which a job of each of these kinds fits alone, in the fewest microbatches that do: of the degrees of `instance`, or where no number
/// of microbatches helps these, of others of the fewest devices. none: there is none on the cluster.
std::optional<InstanceSpec> instance_that_holds(const ClusterSpec& cluster, const InstanceSpec& instance, const std::vector<JobKind>& kinds);

/// The same on up to 64 times as many nodes of the cluster's kind, over with_network's (plan/row_needs.h).
std::optional<InstanceSpec> instance_of_more_nodes(const ClusterSpec& cluster, const InstanceSpec& instance, const std::vector<JobKind>& kinds);
/// The same with the least memory_bytes of the cluster's devices, in steps of what bytes_text shows, up to a thousand times as many;
/// machine.device has them.
std::optional<InstanceSpec> instance_of_more_memory(const ClusterSpec& cluster, const InstanceSpec& instance, const std::vector<JobKind>& kinds);

/// An instance in words: model, devices, degrees, microbatches.
std::string describe(const InstanceSpec& instance);
/// What a rate table is made for: describe, sharing, and a checksum of all else that rounds depend on.
std::string rates_origin(const InstanceSpec& instance);

}  // namespace cotune
