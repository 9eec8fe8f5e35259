#include "plan/fusion/fusion.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "base/counted.h"
#include "base/error.h"
#include "base/never.h"
#include "plan/fusion/job_runs.h"

namespace cotune {
namespace {

constexpr size_t most_bounds = 32;              // on the latency of a run
constexpr int32_t most_runs = 64;               // of a split that the dynamic program makes
constexpr size_t starts = 8;                    // splits that borders are moved in
constexpr int64_t computations_to_spend = 400'000;    // on simulations; a third of it before borders are moved
constexpr double estimates_within = 1.03;       // of the best: what is simulated
constexpr double estimates_within_memory = 2;   // where microbatches wait for memory, which estimates know less of

/// Distinct latencies of the runs that fit, ascending; evenly chosen where they are many, the largest included.
std::vector<double> latency_bounds(const JobRuns& runs) {
  std::vector<double> all;
  for (int32_t first = 0; first < runs.job_count(); ++first) {
    for (int32_t end = first + 1; end <= runs.job_count(); ++end) {
      if (runs.run(first, end).fits) all.push_back(runs.run(first, end).latency_s);
    }
  }
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  if (all.size() <= most_bounds) return all;
  std::vector<double> bounds;
  for (size_t i = 1; i <= most_bounds; ++i) bounds.push_back(all[i * all.size() / most_bounds - 1]);
  return bounds;
}

class FusionSearch {
 public:
  FusionSearch(const FusionProblem& problem, const JobRuns& runs)
      : problem_(problem),
        runs_(runs),
        simulator_(problem, runs.stage_count()),
        within_(problem.memory_bytes.empty() ? estimates_within : estimates_within_memory) {
    fusion_.best_of_count.assign(static_cast<size_t>(runs.job_count()), never);
    fusion_.time.seconds = never;
  }

  Fusion run() {
    for (const double bound : latency_bounds(runs_)) add_candidates(bound);
    std::sort(candidates_.begin(), candidates_.end());
    for (const Candidate& candidate : candidates_) {
      if (simulator_.computations() > computations_to_spend / 3) break;
      if (candidate.estimate_s == never || candidate.estimate_s > within_ * fusion_.time.seconds) break;
      simulate(candidate.ends);
    }
    std::sort(simulated_.begin(), simulated_.end());
    const std::vector<Simulated> best(simulated_.begin(),
                                      simulated_.begin() + static_cast<std::ptrdiff_t>(std::min(starts, simulated_.size())));
    for (const Simulated& start : best) {
      if (start.seconds < never) improve(start);
    }
    if (fusion_.time.seconds < never) fusion_.tasks = runs_.tasks(best_ends_);
    fusion_.objective = fusion_.time.seconds;
    return std::move(fusion_);
  }

 private:
  struct Candidate {
    double estimate_s = 0;
    RunEnds ends;
    auto operator<=>(const Candidate&) const = default;
  };
  struct Simulated {
    double seconds = 0;
    RunEnds ends;
    auto operator<=>(const Simulated&) const = default;
  };

  /// For each number of runs the split with the least work among those whose runs keep the bound.
  void add_candidates(double bound_s) {
    const int32_t jobs = runs_.job_count();
    const int32_t most = std::min(jobs, most_runs);
    const auto width = static_cast<size_t>(jobs) + 1;
    struct Entry {
      double work_s = never;
      int32_t from = 0;
    };
    std::vector<Entry> table(static_cast<size_t>(most + 1) * width);  // [runs, jobs]
    table[0].work_s = 0;
    for (int32_t first = 0; first < jobs; ++first) {
      for (int32_t end = first + 1; end <= jobs; ++end) {
        const JobRun& run = runs_.run(first, end);
        if (!run.fits || run.latency_s > bound_s) continue;
        for (int32_t count = 1; count <= std::min(first + 1, most); ++count) {
          const Entry& before = table[static_cast<size_t>(count - 1) * width + static_cast<size_t>(first)];
          Entry& entry = table[static_cast<size_t>(count) * width + static_cast<size_t>(end)];
          if (before.work_s + run.work_s < entry.work_s) entry = {before.work_s + run.work_s, first};
        }
      }
    }
    for (int32_t count = 1; count <= most; ++count) {
      if (table[static_cast<size_t>(count) * width + static_cast<size_t>(jobs)].work_s == never) continue;
      RunEnds ends;
      for (int32_t left = count, end = jobs; left > 0; --left) {
        ends.push_back(end);
        end = table[static_cast<size_t>(left) * width + static_cast<size_t>(end)].from;
      }
      std::reverse(ends.begin(), ends.end());
      if (seen_.insert(ends).second) candidates_.push_back({estimate_s(ends), ends});
    }
  }

  const std::vector<const JobRun*>& runs_of(const RunEnds& ends) {
    split_.clear();
    int32_t first = 0;
    for (const int32_t end : ends) {
      split_.push_back(&runs_.run(first, end));
      first = end;
    }
    return split_;
  }

  /// MuxTune's Lemma 1 with the drain corrected (template_makespan_bound), for stages that are not alike: the slowest
  /// stage works on all; in front of it the first run fills the pipeline; behind a run's last backward there are its
  /// way down and the backwards of the later ones.
  double estimate_s(const RunEnds& ends) {
    std::vector<const JobRun*> launch = runs_of(ends);
    std::stable_sort(launch.begin(), launch.end(),
                     [](const JobRun* a, const JobRun* b) { return a->latency_s > b->latency_s; });
    const std::vector<double> work_s = works(launch);
    double backward_left = 0;
    for (const JobRun* run : launch) backward_left += run->backward_s;
    double work = 0, longest = 0;
    const auto rounds = static_cast<double>(problem_.rounds);
    const double all_work = std::accumulate(work_s.begin(), work_s.end(), 0.0);
    for (size_t i = 0; i < launch.size(); ++i) {
      work += work_s[i];
      backward_left -= launch[i]->backward_s;
      longest = std::max(longest, work + launch[i]->drain_s + backward_left);
    }
    return ((rounds - 1) * all_work + launch.front()->fill_s + longest) / rounds;
  }

  /// Of each run, with the largest workspace of all set aside; infinite where one does not fit beside it.
  std::vector<double> works(const std::vector<const JobRun*>& launch) {
    std::vector<double> result;
    if (problem_.memory_bytes.empty()) {
      for (const JobRun* run : launch) result.push_back(run->work_s);
      return result;
    }
    limit_ = problem_.memory_bytes;
    for (const JobRun* run : launch) {
      for (size_t s = 0; s < limit_.size() && !run->workspace_bytes.empty(); ++s) {
        limit_[s] = std::min(limit_[s], problem_.memory_bytes[s] - run->workspace_bytes[s]);
      }
    }
    for (const JobRun* run : launch) {
      bool fits = run->fits;
      for (size_t s = 0; s < limit_.size(); ++s) fits = fits && run->times.stages[s].kept_bytes <= limit_[s];
      result.push_back(fits ? run_work_s(*run, problem_.microbatches, limit_) : never);
    }
    return result;
  }

  double simulate(const RunEnds& ends) {
    const double seconds = simulator_.seconds(runs_of(ends));
    ++fusion_.simulated;
    double& of_count = fusion_.best_of_count[ends.size() - 1];
    of_count = std::min(of_count, seconds);
    simulated_.push_back({seconds, ends});
    if (seconds < fusion_.time.seconds) {
      fusion_.time.seconds = seconds;
      best_ends_ = ends;
    }
    return seconds;
  }

  /// Moves, removes and adds borders, the most promising change first, until none helps.
  void improve(Simulated at) {
    for (bool moved = true; moved;) {
      moved = false;
      std::vector<Candidate> near;
      for (RunEnds& ends : neighbours(at.ends)) {
        const double estimate = estimate_s(ends);
        if (estimate < within_ * at.seconds) near.push_back({estimate, std::move(ends)});
      }
      std::sort(near.begin(), near.end());
      for (const Candidate& each : near) {
        if (simulator_.computations() > computations_to_spend) return;
        if (!tried_.insert(each.ends).second) continue;
        const double seconds = simulate(each.ends);
        if (seconds >= at.seconds * (1 - 1e-9)) continue;
        at = {seconds, each.ends};
        moved = true;
        break;
      }
    }
  }

  std::vector<RunEnds> neighbours(const RunEnds& ends) const {
    std::vector<RunEnds> result;
    for (size_t i = 0; i + 1 < ends.size(); ++i) {
      const int32_t first = i == 0 ? 0 : ends[i - 1];
      for (int32_t border = std::max(first + 1, ends[i] - 3); border <= std::min(ends[i + 1] - 1, ends[i] + 3); ++border) {
        if (border == ends[i]) continue;
        result.push_back(ends);
        result.back()[i] = border;
      }
      result.push_back(ends);
      result.back().erase(result.back().begin() + static_cast<std::ptrdiff_t>(i));
    }
    int32_t first = 0;
    for (size_t i = 0; i < ends.size(); ++i) {
      for (int32_t border = first + 1; border < ends[i]; ++border) {
        result.push_back(ends);
        result.back().insert(result.back().begin() + static_cast<std::ptrdiff_t>(i), border);
      }
      first = ends[i];
    }
    return result;
  }

  const FusionProblem& problem_;
  const JobRuns& runs_;
  RoundSimulator simulator_;
  Fusion fusion_;
  RunEnds best_ends_;
  std::vector<Candidate> candidates_;
  std::vector<Simulated> simulated_;
  std::set<RunEnds> seen_, tried_;
  std::vector<const JobRun*> split_;
  std::vector<int64_t> limit_;
  double within_;
};

/// Σ over a stage of a forward's way there, and of an error's way from there.
double fill_s(const JobRun& run, size_t stage) {
  double sum = 0;
  for (size_t s = 0; s < stage; ++s) sum += run.times.stages[s].forward_s + run.times.stages[s].send_up_s;
  return sum;
}

double drain_s(const JobRun& run, size_t stage) {
  double sum = 0;
  for (size_t s = stage; s > static_cast<size_t>(run.times.lowest_stage); --s) {
    sum += run.times.stages[s].send_down_s + run.times.stages[s - 1].backward_s;
  }
  return sum;
}

/// Least of any split under the template: for each bound on the longest run, which is launched first, each stage has at
/// least to wait for it, to work on all, and to send the last error down.
double lower_bound_s(const FusionProblem& problem, const JobRuns& runs) {
  const int32_t jobs = runs.job_count();
  const auto rounds = static_cast<double>(problem.rounds);
  const auto stages = static_cast<size_t>(runs.stage_count());
  // Any stage gives a bound; the busiest and the last give the best ones.
  size_t busiest = 0;
  const auto busy_s = [&](size_t s) {
    double sum = 0;
    for (int32_t job = 0; job < jobs; ++job) {
      const BucketStage& stage = runs.run(job, job + 1).times.stages[s];
      sum += stage.forward_s + stage.backward_s;
    }
    return sum;
  };
  for (size_t s = 1; s < stages; ++s) {
    if (busy_s(s) > busy_s(busiest)) busiest = s;
  }
  double least = never, shorter_than = -1;
  for (const double bound : latency_bounds(runs)) {
    double longest_stage = 0;
    for (const size_t s : {busiest, stages - 1}) {
      std::vector<double> work(static_cast<size_t>(jobs) + 1, never);  // of the first jobs
      work[0] = 0;
      double fill = never, drain = never;
      for (int32_t first = 0; first < jobs; ++first) {
        for (int32_t end = first + 1; end <= jobs; ++end) {
          const JobRun& run = runs.run(first, end);
          if (!run.fits || run.latency_s > bound) continue;
          const BucketStage& stage = run.times.stages[s];
          double& of_end = work[static_cast<size_t>(end)];
          of_end = std::min(of_end, work[static_cast<size_t>(first)] +
                                        static_cast<double>(problem.microbatches) * (stage.forward_s + stage.backward_s));
          if (run.latency_s > shorter_than) fill = std::min(fill, fill_s(run, s));
          drain = std::min(drain, drain_s(run, s));
        }
      }
      longest_stage = std::max(longest_stage, work.back() + (fill + drain) / rounds);
    }
    least = std::min(least, longest_stage);
    shorter_than = bound;
  }
  return least;
}

/// What keeps one microbatch of the jobs from fitting, beside a workspace that another may need.
std::string overflow(const FusionProblem& problem, std::span<const int32_t> jobs, const std::vector<int64_t>& workspace) {
  const FusedCost cost = problem.cost(jobs);
  for (size_t s = 0; s < problem.memory_bytes.size(); ++s) {
    const int64_t kept = static_cast<size_t>(cost.lowest_stage) <= s ? cost.stages[s].kept_bytes : 0;
    if (kept + workspace[s] <= problem.memory_bytes[s]) continue;
    return fmt::format("stage {} of {}: a microbatch of {} keeps {:.1f} MiB and computes in {:.1f}, {:.1f} are left", s + 1,
                       problem.memory_bytes.size(), counted(std::ssize(jobs), "job"),
                       static_cast<double>(kept) / 1048576, static_cast<double>(workspace[s]) / 1048576,
                       static_cast<double>(problem.memory_bytes[s]) / 1048576);
  }
  return "";
}

FusionTime time_of(const FusionProblem& problem, const HybridTasks& tasks) {
  std::vector<JobRun> runs;
  std::vector<int64_t> workspace(problem.memory_bytes.size(), 0);
  for (const std::vector<int32_t>& jobs : tasks) {
    runs.push_back(job_run(problem, problem.cost(jobs)));
    for (size_t s = 0; s < workspace.size() && !runs.back().workspace_bytes.empty(); ++s) {
      workspace[s] = std::max(workspace[s], runs.back().workspace_bytes[s]);
    }
  }
  std::vector<const JobRun*> split;
  for (const JobRun& run : runs) split.push_back(&run);
  RoundSimulator simulator(problem, static_cast<int32_t>(runs.front().times.stages.size()));
  FusionTime time{.seconds = simulator.seconds(split)};
  if (time.seconds < never) return time;
  for (const std::vector<int32_t>& jobs : tasks) {
    time.constraint = overflow(problem, jobs, workspace);
    if (!time.constraint.empty()) break;
  }
  return time;
}

}  // namespace

Fusion fuse_jobs(const FusionProblem& problem, FusionRule rule) { return fuse_runs(problem, JobRuns(problem), rule); }

Fusion fuse_runs(const FusionProblem& problem, const JobRuns& runs, FusionRule rule) {
  Fusion fusion;
  if (rule == FusionRule::simulated) {
    fusion = FusionSearch(problem, runs).run();
  } else if (const auto split = paper_split(problem, runs)) {
    fusion.tasks = runs.tasks(split->ends);
    fusion.objective = split->objective;
    fusion.time = time_of(problem, fusion.tasks);
    fusion.simulated = 1;
    fusion.best_of_count.assign(static_cast<size_t>(runs.job_count()), never);
    fusion.best_of_count[fusion.tasks.size() - 1] = fusion.time.seconds;
  }
  fusion.lower_bound = lower_bound_s(problem, runs);
  if (fusion.tasks.empty()) {
    fusion.objective = never;
    fusion.time = {.seconds = never, .constraint = "no split was found to fit"};
    // A job that does not fit alone says more.
    for (const int32_t job : runs.order()) {
      const FusionTime alone = time_of(problem, {{job}});
      if (!alone.constraint.empty()) fusion.time.constraint = fmt::format("job {} alone: {}", job, alone.constraint);
    }
  }
  return fusion;
}

FusionTime fusion_time(const FusionProblem& problem, const HybridTasks& tasks) { return time_of(problem, tasks); }

}  // namespace cotune
