#include "plan/followed_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "jobs/job_list.h"
#include "plan/plan_origin.h"
#include "schedule/microbatch.h"
#include "schedule/pipeline/pipeline_work.h"

namespace cotune {
namespace {

std::vector<std::string> sorted(std::vector<std::string> names) {
  std::sort(names.begin(), names.end());
  return names;
}

RankOrder order_of(PipelineOrder order) {
  switch (order) {
    case PipelineOrder::gpipe: return RankOrder::gpipe;
    case PipelineOrder::one_f_one_b: return RankOrder::one_f_one_b;
    case PipelineOrder::interleaved:
    case PipelineOrder::automatic: return RankOrder::automatic;
    case PipelineOrder::split: return RankOrder::split;
  }
  return RankOrder::automatic;
}

/// Reports what is wrong with a plan at its fields.
class Follower {
 public:
  Follower(const Plan& plan, const FollowingRun& run, const std::string& file, Diagnostics& mistakes)
      : plan_(plan), run_(run), file_(file), mistakes_(mistakes), same_jobs_(sorted(plan.jobs) == sorted(run.jobs)) {}

  FollowedPlan follow() {
    check_plan();
    FollowedPlan followed{.sharing = plan_.sharing,
                          .layout = plan_.layout,
                          .chunk_size = plan_.chunk_size,
                          .order = order_of(plan_.order),
                          .recompute = plan_.recompute,
                          .replicas = {}};
    int64_t longest = 0;
    for (const PlannedReplica& replica : plan_.replicas) longest = std::max(longest, replica.longest_row);
    for (size_t i = 0; i < plan_.replicas.size(); ++i) followed.replicas.push_back(follow(i, longest));
    return followed;
  }

 private:
  void refuse(const std::string& field, const std::string& message) { mistakes_.add(file_, 0, field, message); }

  void check_plan() {
    if (!same_jobs_) {
      refuse("jobs", fmt::format("must be the jobs of the jobs file, {}; got {}", job_list(run_.jobs), job_list(plan_.jobs)));
    }
    if (run_.model != nullptr && plan_.model_hash != hash_of(*run_.model)) {
      refuse("model", fmt::format("must be {}, the hash of this run's model; got {}: the plan is another model's",
                                  hash_of(*run_.model), plan_.model_hash));
    }
    if (!run_.dtype.empty() && plan_.dtype != run_.dtype) {
      refuse("dtype", fmt::format("must be {}, which this run computes in; got {} (model.dtype sets both)", run_.dtype,
                                  plan_.dtype));
    }
    int64_t devices = 0;
    for (const PlannedReplica& replica : plan_.replicas) devices += replica.devices();
    if (devices > most_ranks)
      refuse("replicas", fmt::format("must have at most {} devices together, which is what `cotune train` takes; got {}", most_ranks, devices));
  }

  FollowedReplica follow(size_t index, int64_t longest_row) {
    const PlannedReplica& planned = plan_.replicas[index];
    const auto field = [&](const char* name) { return fmt::format("replicas[{}].{}", index, name); };
    FollowedReplica replica{.degrees = {.pipeline = planned.pipeline_stages(),
                                        .tensor = planned.tensor_parallel,
                                        .longest_row = planned.longest_row < longest_row ? planned.longest_row : 0,
                                        .stages_per_rank = planned.chunks(),
                                        .shards_weights = planned.shards > 1,
                                        .is_sequence_parallel = planned.is_sequence_parallel},
                            .layout = {.stages = planned.layer_runs(),
                                       .stage_rank = interleaved_stages(static_cast<int32_t>(planned.pipeline_stages()),
                                                                        static_cast<int32_t>(planned.chunks())),
                                       .shards_weights = planned.shards > 1},
                            .token_budget = planned.token_budget,
                            .hybrid_tasks = {},
                            .least_microbatches = planned.least_microbatches,
                            .jobs_of_buckets = {}};
    const std::string mistake = run_.model != nullptr ? mistake_in_layers(planned, *run_.model) : "";
    if (!mistake.empty()) refuse(field("stages"), mistake);
    const int64_t least = plan_.layout == Layout::chunked ? std::max(atom_tokens, plan_.chunk_size) : atom_tokens;
    if (planned.token_budget < least) refuse(field("token_budget"), fmt::format("must be at least {}, got {}", least, planned.token_budget));
    if (plan_.sharing == Sharing::hybrid && same_jobs_) replica.hybrid_tasks = tasks_of(planned, field("hybrid_tasks"));
    if (plan_.sharing == Sharing::hybrid && same_jobs_ && planned.tensor_parallel > 1) replica.jobs_of_buckets = buckets_of(planned);
    return replica;
  }

  int32_t place_of(int32_t job) const {
    return static_cast<int32_t>(std::find(run_.jobs.begin(), run_.jobs.end(), plan_.jobs[static_cast<size_t>(job)]) - run_.jobs.begin());
  }

  std::vector<std::vector<int32_t>> buckets_of(const PlannedReplica& planned) const {
    std::vector<std::vector<int32_t>> buckets;
    for (const std::vector<int32_t>& bucket : planned.buckets) {
      std::vector<int32_t>& jobs = buckets.emplace_back();
      for (const int32_t task : bucket) {
        for (const int32_t job : planned.hybrid_tasks[static_cast<size_t>(task)]) jobs.push_back(place_of(job));
      }
      std::sort(jobs.begin(), jobs.end());
    }
    return buckets;
  }

  HybridTasks tasks_of(const PlannedReplica& planned, const std::string& field) {
    HybridTasks tasks;
    std::set<int32_t> named;
    for (const std::vector<int32_t>& task : planned.hybrid_tasks) {
      std::vector<int32_t>& places = tasks.emplace_back();
      for (const int32_t job : task) {
        named.insert(job);
        places.push_back(place_of(job));
      }
      std::sort(places.begin(), places.end());
    }
    for (size_t job = 0; job < plan_.jobs.size(); ++job) {
      if (named.contains(static_cast<int32_t>(job))) continue;
      if (plan_.replicas.size() > 1) {  // of which this one has no rows
        tasks.push_back({place_of(static_cast<int32_t>(job))});
      } else {
        refuse(field, fmt::format("must hold every job; job {} ({}) is in none", job, plan_.jobs[job]));
      }
    }
    return tasks;
  }

  const Plan& plan_;
  const FollowingRun& run_;
  const std::string& file_;
  Diagnostics& mistakes_;
  const bool same_jobs_;
};

}  // namespace

Parallel FollowedPlan::parallel() const {
  Parallel all{.replicas = {}};
  for (const FollowedReplica& replica : replicas) all.replicas.push_back(replica.degrees);
  return all;
}

int64_t FollowedPlan::token_budget() const {
  int64_t most = 0;
  for (const FollowedReplica& replica : replicas) most = std::max(most, replica.token_budget);
  return most;
}

FollowedPlan follow(const Plan& plan, const FollowingRun& run, const std::string& file, Diagnostics& mistakes) {
  return Follower(plan, run, file, mistakes).follow();
}

}  // namespace cotune
