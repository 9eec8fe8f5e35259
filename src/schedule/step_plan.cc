#include "schedule/step_plan.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "schedule/packing.h"

namespace cotune {
namespace {

/// Places in the round's batches, by hybrid task; those of no task last, each by itself.
std::vector<std::vector<size_t>> places_by_task(std::span<const BatchShape> batches,
                                                const std::vector<std::vector<int32_t>>& hybrid_tasks) {
  std::vector<std::vector<size_t>> of_task(hybrid_tasks.size()), alone;
  for (size_t place = 0; place < batches.size(); ++place) {
    const auto found = std::find_if(hybrid_tasks.begin(), hybrid_tasks.end(), [&](const std::vector<int32_t>& task) {
      return std::find(task.begin(), task.end(), batches[place].job) != task.end();
    });
    if (found == hybrid_tasks.end()) {
      alone.push_back({place});
    } else {
      of_task[static_cast<size_t>(found - hybrid_tasks.begin())].push_back(place);
    }
  }
  of_task.insert(of_task.end(), alone.begin(), alone.end());
  return of_task;
}

/// Groups in the order of their work, under the sharing policy. `jobs`: the atoms of each batch.
std::vector<MicrobatchGroup> pack(std::span<const BatchShape> batches, std::vector<std::vector<Atom>> jobs,
                                  const PackingPolicy& policy) {
  std::vector<MicrobatchGroup> groups;
  switch (policy.sharing) {
    case Sharing::hybrid:
      if (policy.hybrid_tasks.empty()) return pack_together(jobs, policy);
      for (const std::vector<size_t>& places : places_by_task(batches, policy.hybrid_tasks)) {
        std::vector<std::vector<Atom>> task;
        for (const size_t place : places) task.push_back(std::move(jobs[place]));
        for (MicrobatchGroup& group : pack_together(task, policy)) groups.push_back(std::move(group));
      }
      return groups;
    case Sharing::batch_all:
      groups.push_back({pack_everything(jobs)});
      return groups;
    case Sharing::separate:
      for (const std::vector<Atom>& job : jobs) {
        for (MicrobatchGroup& group : pack_together({&job, 1}, policy)) groups.push_back(std::move(group));
      }
      return groups;
    case Sharing::temporal: {
      std::vector<std::vector<MicrobatchGroup>> of_job;
      size_t turns = 0;
      for (const std::vector<Atom>& job : jobs) {
        of_job.push_back(pack_together({&job, 1}, policy));
        turns = std::max(turns, of_job.back().size());
      }
      for (size_t turn = 0; turn < turns; ++turn) {
        for (std::vector<MicrobatchGroup>& own : of_job) {
          if (turn < own.size()) groups.push_back(std::move(own[turn]));
        }
      }
      return groups;
    }
  }
  return groups;
}

/// Appends a plan's actions, and knows when a job's last atom is through.
class ActionWriter {
 public:
  explicit ActionWriter(StepPlan& plan) : plan_(plan) {}

  void forward(int32_t microbatch) {
    plan_.actions.push_back({.kind = ActionKind::forward, .microbatch = microbatch});
  }

  void backward(int32_t microbatch) {
    if (!plan_.policy.recompute) {
      plan_.actions.push_back({.kind = ActionKind::backward, .microbatch = microbatch});
      return;
    }
    const auto layer_count = static_cast<int32_t>(plan_.policy.layer_count);
    add(ActionKind::backward, microbatch, layer_count, layer_count);
    for (int32_t layer = layer_count; layer-- > lowest_layer(microbatch);) {
      add(ActionKind::recompute, microbatch, layer, layer + 1);
      add(ActionKind::backward, microbatch, layer, layer + 1);
    }
  }

  void free_and_step(int32_t microbatch) {
    plan_.actions.push_back({.kind = ActionKind::free, .microbatch = microbatch});
    for (const Atom& atom : plan_.microbatches[static_cast<size_t>(microbatch)].atoms) {
      if (atom.index != 0) continue;
      plan_.actions.push_back(
          {.kind = ActionKind::optimizer_step, .job = atom.job, .job_step = batch_of(atom.job).step});
    }
  }

 private:
  void add(ActionKind kind, int32_t microbatch, int32_t first_layer, int32_t last_layer) {
    plan_.actions.push_back(
        {.kind = kind, .microbatch = microbatch, .first_layer = first_layer, .last_layer = last_layer});
  }

  const BatchShape& batch_of(int32_t job) const {
    return *std::find_if(plan_.batches.begin(), plan_.batches.end(),
                         [&](const BatchShape& batch) { return batch.job == job; });
  }

  int32_t lowest_layer(int32_t microbatch) const {
    int64_t lowest = plan_.policy.layer_count;
    for (const Atom& atom : plan_.microbatches[static_cast<size_t>(microbatch)].atoms) {
      lowest = std::min(lowest, batch_of(atom.job).lowest_layer);
    }
    return static_cast<int32_t>(lowest);
  }

  StepPlan& plan_;
};

StepPlan plan_with_rule(std::span<const BatchShape> batches, const PackingPolicy& policy, const AtomRule& rule) {
  COTUNE_CHECK(!policy.recompute || policy.layer_count >= 1, "recompute needs the layer count");
  StepPlan plan{.policy = policy, .batches = {batches.begin(), batches.end()}};
  std::vector<std::vector<Atom>> atoms;
  for (const BatchShape& batch : batches) atoms.push_back(cut_into_atoms(batch, rule));
  if (atoms.empty()) return plan;

  ActionWriter writer(plan);
  for (MicrobatchGroup& group : pack(batches, std::move(atoms), policy)) {
    const auto first = static_cast<int32_t>(plan.microbatches.size());
    for (Microbatch& microbatch : group) {
      if (policy.layout == Layout::padded) pad_to_longest(microbatch);
      plan.microbatches.push_back(std::move(microbatch));
    }
    const auto end = static_cast<int32_t>(plan.microbatches.size());
    for (int32_t m = end; m-- > first;) writer.forward(m);
    for (int32_t m = first; m < end; ++m) {
      writer.backward(m);
      writer.free_and_step(m);
    }
  }
  return plan;
}

}  // namespace

StepPlan plan_step(std::span<const BatchShape> batches, const PackingPolicy& policy) {
  return plan_with_rule(batches, policy, {.layout = policy.layout, .chunk_size = policy.chunk_size});
}

StepPlan plan_step_with_segments(std::span<const BatchShape> batches, const PackingPolicy& policy,
                                 int64_t segment_tokens) {
  COTUNE_CHECK(policy.layout != Layout::chunked, "chunks have their own size");
  return plan_with_rule(batches, policy, {.layout = policy.layout, .capacity = segment_tokens});
}

}  // namespace cotune
