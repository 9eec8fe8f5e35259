#include "schedule/pipeline/pipeline_work.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "base/error.h"
#include "schedule/sequence_parallel.h"

namespace cotune {
namespace {

bool is_duration(double seconds) {
  return std::isfinite(seconds) && seconds >= 0;
}

void check_costs(const PipelineWork& work, size_t m) {
  const PipelineMicrobatch& microbatch = work.microbatches[m];
  COTUNE_CHECK(microbatch.cost.size() == work.stage_rank.size(), "microbatch {} has {} costs for {} stages",
               m, microbatch.cost.size(), work.stage_rank.size());
  for (const StageCost& cost : microbatch.cost) {
    COTUNE_CHECK(is_duration(cost.forward_s) && is_duration(cost.backward_s) && cost.kept_bytes >= 0,
                 "microbatch {} costs {} s forward, {} s backward, {} bytes", m, cost.forward_s,
                 cost.backward_s, cost.kept_bytes);
  }
  const MessageBytes& sent = microbatch.message_bytes;
  COTUNE_CHECK(sent.activation >= 0 && sent.error >= 0, "microbatch {} sends {} bytes up and {} down", m, sent.activation, sent.error);
}

void check_chain(const PipelineWork& work, size_t m, std::map<int32_t, size_t>& last_of_chain) {
  const PipelineMicrobatch& microbatch = work.microbatches[m];
  if (microbatch.chain < 0) return;
  const auto found = last_of_chain.find(microbatch.chain);
  if (found != last_of_chain.end()) {
    COTUNE_CHECK(found->second + 1 == m, "chain {} has microbatches {} and {}, not adjacent",
                 microbatch.chain, found->second, m);
    const PipelineMicrobatch& before = work.microbatches[m - 1];
    std::vector<JobStep> shared;
    std::set_intersection(before.jobs.begin(), before.jobs.end(), microbatch.jobs.begin(),
                          microbatch.jobs.end(), std::back_inserter(shared));
    COTUNE_CHECK(!shared.empty() && before.round == microbatch.round,
                 "chain {}: microbatches {} and {} share no job step", microbatch.chain, m - 1, m);
  }
  last_of_chain[microbatch.chain] = m;
}

}  // namespace

void check(const PipelineWork& work) {
  COTUNE_CHECK(!work.stage_rank.empty() && work.rank_count > 0, "a pipeline has stages and ranks");
  for (const int32_t rank : work.stage_rank) {
    COTUNE_CHECK(rank >= 0 && rank < work.rank_count, "a stage on rank {} of {}", rank, work.rank_count);
  }
  std::map<int32_t, int64_t> step_of;
  for (const PipelineJob& job : work.jobs) {
    COTUNE_CHECK(job.lowest_stage >= 0 && job.lowest_stage < work.stage_count(), "job {}: lowest stage {}",
                 job.job, job.lowest_stage);
    COTUNE_CHECK(is_duration(job.optimizer_s), "job {}: an optimizer step of {} s", job.job, job.optimizer_s);
    COTUNE_CHECK(step_of.emplace(job.job, -1).second, "job {} is listed twice", job.job);
  }
  std::map<int32_t, size_t> last_of_chain;
  for (size_t m = 0; m < work.microbatches.size(); ++m) {
    const PipelineMicrobatch& microbatch = work.microbatches[m];
    check_costs(work, m);
    check_chain(work, m, last_of_chain);
    COTUNE_CHECK(!microbatch.jobs.empty() && std::is_sorted(microbatch.jobs.begin(), microbatch.jobs.end()),
                 "microbatch {} has no jobs, or unsorted ones", m);
    for (size_t i = 0; i < microbatch.jobs.size(); ++i) {
      const auto [job, step] = microbatch.jobs[i];
      const auto found = step_of.find(job);
      COTUNE_CHECK(found != step_of.end(), "microbatch {}: there is no job {}", m, job);
      COTUNE_CHECK(i == 0 || microbatch.jobs[i - 1].job != job, "microbatch {}: job {} twice", m, job);
      COTUNE_CHECK(step >= 0 && (found->second == -1 || step == found->second || step == found->second + 1),
                   "microbatch {}: job {} is at step {} after step {}", m, job, step, found->second);
      found->second = step;
    }
  }
}

std::vector<int32_t> one_stage_per_rank(int32_t rank_count) {
  return interleaved_stages(rank_count, 1);
}

std::vector<int32_t> interleaved_stages(int32_t rank_count, int32_t chunks) {
  std::vector<int32_t> ranks;
  for (int32_t stage = 0; stage < rank_count * chunks; ++stage) ranks.push_back(stage % rank_count);
  return ranks;
}

PipelineWork uniform_work(int32_t rank_count, int32_t job_count, int32_t microbatches, int32_t rounds,
                          const StageCost& cost, const MessageBytes& message_bytes) {
  PipelineWork work{.rank_count = rank_count, .stage_rank = one_stage_per_rank(rank_count)};
  for (int32_t job = 0; job < job_count; ++job) work.jobs.push_back({.job = job});
  for (int64_t round = 0; round < rounds; ++round) {
    for (int32_t job = 0; job < job_count; ++job) {
      const PipelineMicrobatch microbatch{
          .hybrid_task = job,
          .round = round,
          .jobs = {{job, round}},
          .message_bytes = message_bytes,
          .cost = std::vector<StageCost>(static_cast<size_t>(rank_count), cost)};
      work.microbatches.insert(work.microbatches.end(), static_cast<size_t>(microbatches), microbatch);
    }
  }
  return work;
}

namespace {

/// Chain number of each microbatch of a step plan: rows with parts in several microbatches tie all from the
/// first to the last of them together.
std::vector<int32_t> chains_of(const StepPlan& plan) {
  std::map<std::pair<int32_t, int32_t>, std::pair<size_t, size_t>>
      span_of_row;  // (job, row) → first and last
  for (size_t m = 0; m < plan.microbatches.size(); ++m) {
    for (const RowPart& part : row_parts(plan.microbatches[m])) {
      const auto [found, added] = span_of_row.try_emplace({part.job, part.row}, m, m);
      if (!added) found->second.second = m;
    }
  }
  std::vector<bool> tied_to_next(plan.microbatches.size(), false);
  for (const auto& [row, span] : span_of_row) {
    for (size_t m = span.first; m < span.second; ++m) tied_to_next[m] = true;
  }
  std::vector<int32_t> chains(plan.microbatches.size(), -1);
  int32_t next = 0;
  for (size_t m = 0; m < chains.size(); ++m) {
    if (m > 0 && tied_to_next[m - 1]) {
      chains[m] = chains[m - 1];
    } else if (tied_to_next[m]) {
      chains[m] = next++;
    }
  }
  return chains;
}

/// Hybrid task of each batch: the first batch that it is fused with.
std::map<int32_t, int32_t> hybrid_tasks_of(const StepPlan& plan) {
  std::vector<int32_t> parent(plan.batches.size());
  std::iota(parent.begin(), parent.end(), 0);
  const auto root = [&](int32_t i) {
    while (parent[static_cast<size_t>(i)] != i) i = parent[static_cast<size_t>(i)];
    return i;
  };
  std::map<int32_t, int32_t> position;
  for (size_t i = 0; i < plan.batches.size(); ++i) position[plan.batches[i].job] = static_cast<int32_t>(i);
  for (const Microbatch& microbatch : plan.microbatches) {
    for (const Atom& atom : microbatch.atoms) {
      const int32_t a = root(position.at(microbatch.atoms.front().job));
      const int32_t b = root(position.at(atom.job));
      parent[static_cast<size_t>(std::max(a, b))] = std::min(a, b);
    }
  }
  std::map<int32_t, int32_t> task_of_job;
  for (const auto& [job, i] : position) task_of_job[job] = root(i);
  return task_of_job;
}

}  // namespace

PipelineWork work_of(const StepPlan& plan, std::vector<int32_t> stage_rank,
                     const std::vector<StageCost>& cost, const std::vector<int32_t>& lowest_stage,
                     const MessageBytes& bytes_per_token, int64_t ranks_with_slices) {
  COTUNE_CHECK(lowest_stage.size() == plan.batches.size(), "{} lowest stages for {} batches",
               lowest_stage.size(), plan.batches.size());
  const size_t stages = stage_rank.size();
  COTUNE_CHECK(cost.size() == plan.microbatches.size() * stages, "{} costs for {} microbatches on {} stages",
               cost.size(), plan.microbatches.size(), stages);
  PipelineWork work{.rank_count = 1 + *std::max_element(stage_rank.begin(), stage_rank.end()),
                    .stage_rank = std::move(stage_rank)};
  std::map<int32_t, int64_t> step_of;
  for (size_t i = 0; i < plan.batches.size(); ++i) {
    work.jobs.push_back({.job = plan.batches[i].job, .lowest_stage = lowest_stage[i]});
    step_of[plan.batches[i].job] = plan.batches[i].step;
  }
  const std::vector<int32_t> chains = chains_of(plan);
  const std::map<int32_t, int32_t> tasks = hybrid_tasks_of(plan);
  for (size_t m = 0; m < plan.microbatches.size(); ++m) {
    PipelineMicrobatch microbatch{.chain = chains[m],
                                  .message_bytes = largest_slice(plan.microbatches[m].token_count(), ranks_with_slices) * bytes_per_token};
    microbatch.cost.assign(cost.begin() + static_cast<std::ptrdiff_t>(m * stages),
                           cost.begin() + static_cast<std::ptrdiff_t>((m + 1) * stages));
    for (const Atom& atom : plan.microbatches[m].atoms)
      microbatch.jobs.push_back({atom.job, step_of.at(atom.job)});
    std::sort(microbatch.jobs.begin(), microbatch.jobs.end());
    microbatch.jobs.erase(std::unique(microbatch.jobs.begin(), microbatch.jobs.end()), microbatch.jobs.end());
    microbatch.hybrid_task = tasks.at(microbatch.jobs.front().job);
    work.microbatches.push_back(std::move(microbatch));
  }
  check(work);
  return work;
}

std::vector<PipelineUnit> units_of(const PipelineWork& work) {
  std::vector<PipelineUnit> units;
  for (size_t m = 0; m < work.microbatches.size(); ++m) {
    const int32_t chain = work.microbatches[m].chain;
    if (m > 0 && chain >= 0 && work.microbatches[m - 1].chain == chain) {
      ++units.back().count;
    } else {
      units.push_back({.first = static_cast<int32_t>(m)});
    }
  }
  return units;
}

const PipelineJob& job_of(const PipelineWork& work, int32_t job) {
  const auto found = std::find_if(work.jobs.begin(), work.jobs.end(),
                                  [&](const PipelineJob& known) { return known.job == job; });
  COTUNE_CHECK(found != work.jobs.end(), "there is no job {}", job);
  return *found;
}

int32_t lowest_stage(const PipelineWork& work, const PipelineMicrobatch& microbatch) {
  int32_t lowest = work.stage_count();
  for (const JobStep& step : microbatch.jobs) lowest = std::min(lowest, job_of(work, step.job).lowest_stage);
  return lowest;
}

}  // namespace cotune
