#include "plan/followed_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "schedule/microbatch.h"

namespace cotune {
namespace {

std::vector<std::string> sorted(std::vector<std::string> names) {
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

FollowedPlan follow(const Plan& plan, const FollowingRun& run, const std::string& file, Diagnostics& mistakes) {
  const auto refuse = [&](const std::string& field, const std::string& message) {
    mistakes.add(file, 0, field, message);
  };
  const bool same_jobs = sorted(plan.jobs) == sorted(run.jobs);
  if (!same_jobs) {
    refuse("jobs", fmt::format("must be the jobs of the jobs file, {}; got {}", fmt::join(run.jobs, ", "),
                               fmt::join(plan.jobs, ", ")));
  }
  if (run.model != nullptr && plan.model_hash != hash_of(*run.model)) {
    refuse("model", fmt::format("must be {}, the hash of this run's model; got {}: the plan is another model's",
                                hash_of(*run.model), plan.model_hash));
  }
  if (!run.dtype.empty() && plan.dtype != run.dtype) {
    refuse("dtype", fmt::format("must be {}, which this run computes in; got {} (model.dtype sets both)", run.dtype,
                                plan.dtype));
  }
  if (plan.replicas.size() != 1) {
    refuse("replicas", fmt::format("must be one: `cotune train` has one device; got {}", plan.replicas.size()));
    return {};
  }
  const PlannedReplica& replica = plan.replicas.front();
  if (replica.tensor_parallel != 1) {
    refuse("replicas[0].tensor_parallel",
           fmt::format("must be 1: `cotune train` has one device; got {}", replica.tensor_parallel));
  }
  if (replica.pipeline_stages() != 1) {
    refuse("replicas[0].stages",
           fmt::format("must be one: `cotune train` has one device; got {}", replica.pipeline_stages()));
  } else if (run.model != nullptr && replica.stages.front().shape.last_layer != run.model->layer_count) {
    refuse("replicas[0].stages[0].layers",
           fmt::format("must end at {}, the model's layers; got {}", run.model->layer_count,
                       replica.stages.front().shape.last_layer));
  }
  const int64_t least = plan.layout == Layout::chunked ? std::max(atom_tokens, plan.chunk_size) : atom_tokens;
  if (replica.token_budget < least) {
    refuse("replicas[0].token_budget", fmt::format("must be at least {}, got {}", least, replica.token_budget));
  }
  FollowedPlan followed{.sharing = plan.sharing,
                        .layout = plan.layout,
                        .chunk_size = plan.chunk_size,
                        .token_budget = replica.token_budget,
                        .recompute = plan.recompute};
  if (plan.sharing != Sharing::hybrid || !same_jobs) return followed;
  std::set<int32_t> named;
  for (const std::vector<int32_t>& task : replica.hybrid_tasks) {
    std::vector<int32_t>& places = followed.hybrid_tasks.emplace_back();
    for (const int32_t job : task) {
      named.insert(job);
      const auto place = std::find(run.jobs.begin(), run.jobs.end(), plan.jobs[static_cast<size_t>(job)]);
      places.push_back(static_cast<int32_t>(place - run.jobs.begin()));
    }
    std::sort(places.begin(), places.end());
  }
  for (size_t job = 0; job < plan.jobs.size(); ++job) {
    if (named.contains(static_cast<int32_t>(job))) continue;
    refuse("replicas[0].hybrid_tasks", fmt::format("must hold every job; job {} ({}) is in none", job, plan.jobs[job]));
  }
  return followed;
}

}  // namespace cotune
