#include "plan/fusion/job_runs.h"

#include <algorithm>
#include <numeric>
#include <tuple>

#include "base/error.h"
#include "base/never.h"
#include "plan/cost/pipeline_seconds.h"

namespace cotune {
namespace {

bool one_microbatch_fits(const FusionProblem& problem, const FusedCost& cost) {
  for (size_t s = 0; s < problem.memory_bytes.size(); ++s) {
    const int64_t workspace = cost.workspace_bytes.empty() ? 0 : cost.workspace_bytes[s];
    const bool is_kept = static_cast<size_t>(cost.lowest_stage) <= s;
    if (workspace + (is_kept ? cost.stages[s].kept_bytes : 0) > problem.memory_bytes[s]) return false;
  }
  return true;
}

}  // namespace

JobRun job_run(const FusionProblem& problem, const FusedCost& cost) {
  COTUNE_CHECK(!cost.stages.empty(), "a cost without stages");
  COTUNE_CHECK(problem.memory_bytes.empty() || problem.memory_bytes.size() == cost.stages.size(),
               "memory of {} stages for {}", problem.memory_bytes.size(), cost.stages.size());
  JobRun run{.times = bucket_times(cost.stages, cost.message_bytes, cost.lowest_stage, cost.optimizer_s, problem.cluster),
             .workspace_bytes = cost.workspace_bytes,
             .fits = one_microbatch_fits(problem, cost)};
  for (int32_t s = 0; s < cost.lowest_stage; ++s) {
    run.times.stages[static_cast<size_t>(s)].backward_s = 0;  // there is none
    run.times.stages[static_cast<size_t>(s)].kept_bytes = 0;
  }
  run.latency_s = run.times.latency_s();
  const auto count = static_cast<double>(problem.microbatches);
  std::vector<int64_t> limit = problem.memory_bytes;
  for (size_t s = 0; s < limit.size() && !run.workspace_bytes.empty(); ++s) limit[s] -= run.workspace_bytes[s];
  run.work_s = run.fits ? run_work_s(run, problem.microbatches, limit) : never;
  for (size_t s = 0; s < run.times.stages.size(); ++s) {
    const BucketStage& stage = run.times.stages[s];
    run.backward_s = std::max(run.backward_s, count * stage.backward_s);
    if (s + 1 < run.times.stages.size()) {
      run.fill_s += stage.forward_s + stage.send_up_s;
      if (static_cast<int32_t>(s) >= cost.lowest_stage) {
        run.drain_s += stage.backward_s + run.times.stages[s + 1].send_down_s;
      }
    }
  }
  return run;
}

double run_work_s(const JobRun& run, int64_t microbatches, std::span<const int64_t> kept_bytes_limit) {
  double slowest = 0, way_and_back = 0;
  for (size_t s = run.times.stages.size(); s-- > 0;) {
    const BucketStage& stage = run.times.stages[s];
    slowest = std::max(slowest, stage.forward_s + stage.backward_s);
    way_and_back += stage.forward_s + stage.backward_s;
    if (!kept_bytes_limit.empty() && stage.kept_bytes > 0) {
      slowest = std::max(slowest, way_and_back / static_cast<double>(kept_bytes_limit[s] / stage.kept_bytes));
    }
    if (s > 0) way_and_back += stage.send_down_s + run.times.stages[s - 1].send_up_s;
  }
  return static_cast<double>(microbatches) * slowest;
}

JobRuns::JobRuns(const FusionProblem& problem) {
  const auto count = static_cast<int32_t>(problem.tokens.size());
  COTUNE_CHECK(count > 0, "fusion of no jobs");
  COTUNE_CHECK(problem.classes.empty() || problem.classes.size() == problem.tokens.size(), "classes of {} jobs for {}",
               problem.classes.size(), count);
  std::vector<std::tuple<int64_t, int64_t, double, int64_t, int32_t>> keys;
  for (int32_t job = 0; job < count; ++job) {
    const FusedCost alone = problem.cost(std::span(&job, 1));
    double seconds = 0;
    int64_t bytes = 0;
    for (const StageCost& stage : alone.stages) {
      seconds += stage.forward_s + stage.backward_s;
      bytes += stage.kept_bytes;
    }
    const auto j = static_cast<size_t>(job);
    keys.emplace_back(problem.classes.empty() ? 0 : problem.classes[j], problem.tokens[j], seconds, bytes, job);
  }
  std::sort(keys.begin(), keys.end());
  for (const auto& key : keys) order_.push_back(std::get<4>(key));
  runs_.resize(order_.size() * order_.size());
  for (size_t first = 0; first < order_.size(); ++first) {
    for (size_t last = first; last < order_.size(); ++last) {
      runs_[first * order_.size() + last] =
          job_run(problem, problem.cost(std::span(order_).subspan(first, last - first + 1)));
    }
  }
  stage_count_ = static_cast<int32_t>(runs_.front().times.stages.size());
}

HybridTasks JobRuns::tasks(const RunEnds& ends) const {
  HybridTasks tasks;
  int32_t first = 0;
  for (const int32_t end : ends) {
    std::vector<int32_t>& jobs = tasks.emplace_back(order_.begin() + first, order_.begin() + end);
    std::sort(jobs.begin(), jobs.end());
    first = end;
  }
  return tasks;
}

RoundSimulator::RoundSimulator(const FusionProblem& problem, int32_t stage_count)
    : problem_(problem), simulator_(stage_count, problem.microbatches, problem.rounds) {}

double RoundSimulator::seconds(std::span<const JobRun* const> runs) {
  launch_.assign(runs.begin(), runs.end());
  std::stable_sort(launch_.begin(), launch_.end(),
                   [](const JobRun* a, const JobRun* b) { return a->latency_s > b->latency_s; });
  buckets_.clear();
  limit_ = problem_.memory_bytes;
  for (const JobRun* run : launch_) {
    if (!run->fits) return never;
    buckets_.push_back(&run->times);
    for (size_t s = 0; s < limit_.size() && !run->workspace_bytes.empty(); ++s) {
      limit_[s] = std::min(limit_[s], problem_.memory_bytes[s] - run->workspace_bytes[s]);
    }
  }
  return simulator_.makespan_s(buckets_, limit_) / static_cast<double>(problem_.rounds);
}

std::optional<PaperSplit> paper_split(const FusionProblem& problem, const JobRuns& runs) {
  const int32_t jobs = runs.job_count();
  const int32_t stages = runs.stage_count();
  // λ_s of the paper is one of two like passes: the mean of forward and backward.
  const auto fits = [&](const JobRun& run) {
    for (size_t s = 0; s < problem.memory_bytes.size(); ++s) {
      const int64_t workspace = run.workspace_bytes.empty() ? 0 : run.workspace_bytes[s];
      if (workspace + stages * run.times.stages[s].kept_bytes > problem.memory_bytes[s]) return false;
    }
    return true;
  };
  const auto alone_s = [&](const JobRun& run) {
    std::vector<double> latencies;
    for (const BucketStage& stage : run.times.stages) latencies.push_back((stage.forward_s + stage.backward_s) / 2);
    return pipeline_seconds(latencies, problem.microbatches);
  };
  struct Entry {
    double seconds = never;
    int32_t from = 0;
  };
  const auto width = static_cast<size_t>(jobs) + 1;
  std::vector<Entry> table(width * width);  // [runs, jobs]
  const auto at = [&](int32_t count, int32_t end) -> Entry& {
    return table[static_cast<size_t>(count) * width + static_cast<size_t>(end)];
  };
  for (int32_t end = 1; end <= jobs; ++end) {
    if (fits(runs.run(0, end))) at(1, end).seconds = alone_s(runs.run(0, end));
  }
  for (int32_t count = 2; count <= jobs; ++count) {
    for (int32_t end = count; end <= jobs; ++end) {
      for (int32_t from = end - 1; from >= count - 1; --from) {
        const JobRun& run = runs.run(from, end);
        if (at(count - 1, from).seconds == never || !fits(run)) continue;
        // 2C/S·Σλ = C·(mean of forward and backward).
        const double seconds = at(count - 1, from).seconds + static_cast<double>(problem.microbatches) * run.latency_s;
        if (seconds < at(count, end).seconds) at(count, end) = {seconds, from};
      }
    }
  }
  int32_t best = 1;
  for (int32_t count = 2; count <= jobs; ++count) {
    if (at(count, jobs).seconds < at(best, jobs).seconds) best = count;
  }
  if (at(best, jobs).seconds == never) return std::nullopt;
  PaperSplit split{.objective = at(best, jobs).seconds};
  for (int32_t count = best, end = jobs; count >= 1; end = at(count, end).from, --count) split.ends.push_back(end);
  std::reverse(split.ends.begin(), split.ends.end());
  return split;
}

}  // namespace cotune
