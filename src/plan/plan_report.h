/// What planning found, for people.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "jobs/job_list.h"
#include "plan/make_plan.h"
#include "plan/node_changes.h"

namespace cotune {

/// The chosen plan in words and numbers: replicas with their devices, layers, rows and times; what is shared;
/// throughput, memory by term, bubble and cost, each with how it is made up; then what was rejected and why.
/// Where nothing fits: why, and what would. Lines of at most 120 columns where names allow it; ends with a
/// newline. sweeps: by which many jobs are named (jobs/job_list.h).
std::string explain(const PlanningResult& result, const ClusterSpec& cluster, const SweepOfJob& sweeps = {});

/// Those of a hybrid task.
std::vector<std::string> names_of_jobs(const Plan& plan, const std::vector<int32_t>& jobs);

/// How else the jobs of the plan could share microbatches, a line each: hybrid tasks between bars, in the order of their buckets, with the
/// replica's seconds (`≥` where that is a bound), its fullest device and why it was rejected. "" where there is no other way.
std::string other_groupings(const Plan& plan, std::span<const ConsideredGrouping> groupings, const SweepOfJob& sweeps = {});

/// Every alternative in one table: seconds, tokens/s, device seconds and cost of a step, fullest device,
/// bubble and idle share, how it stands to the chosen one. Of what does not fit the seconds are in parentheses: what it would take with
/// memory enough, as it was tried last, `≥` where that is a bound (Alternative::is_bound).
std::string comparison_table(const PlanningResult& result);

/// What another number of nodes would change, a line each; `before`: of the plan. "" without changes.
std::string explain(const std::vector<NodeChange>& changes, const PredictedStep& before);

}  // namespace cotune
