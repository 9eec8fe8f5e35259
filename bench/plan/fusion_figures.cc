#include "plan/fusion_figures.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <string>

#include "plan/fusion/hybrid_tasks.h"
#include "plan/fusion/replica_jobs.h"
#include "plan/random_fusion.h"

namespace cotune {
namespace {

double cpu_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

/// Distances from one, in percent.
struct Distances {
  double sum = 0, worst = 0;
  int count = 0;
  void add(double ratio) {
    sum += 100 * (ratio - 1);
    worst = std::max(worst, 100 * (ratio - 1));
    ++count;
  }
  std::string text() const { return fmt::format("{:.3f} %, worst {:.2f} %", sum / count, worst); }
};

void against_all_splits(int64_t jobs, uint64_t cases, uint64_t first_seed, const char* goal) {
  Distances ours, paper;
  for (uint64_t seed = first_seed; seed < first_seed + cases; ++seed) {
    const FusionProblem problem = random_fusion(seed, {.jobs = jobs});
    const double best = best_of_all_splits(problem);
    ours.add(fuse_jobs(problem).time.seconds / best);
    paper.add(fuse_jobs(problem, FusionRule::paper).time.seconds / best);
  }
  fmt::print("| fusion of {} jobs against the best of all {} splits, {} cases, simulated | – | {} | mean {}; Eq. 6 as written: mean {} |\n",
             jobs, int64_t{1} << (jobs - 1), cases, goal, ours.text(), paper.text());
}

void against_the_bound() {
  Distances ours, paper;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const FusionProblem problem = random_fusion(200'000 + seed, {.jobs = 64});
    const Fusion fusion = fuse_jobs(problem);
    ours.add(fusion.time.seconds / fusion.lower_bound);
    paper.add(fuse_jobs(problem, FusionRule::paper).time.seconds / fusion.lower_bound);
  }
  fmt::print("| fusion of 64 jobs above a bound under all splits, 100 cases | – | shown | mean {}; Eq. 6 as written: mean {} |\n",
             ours.text(), paper.text());
}

void planning_of_64_jobs() {
  ReplicaJobs replica{.model = model_preset("llama-2-7b")};
  for (int32_t j = 0; j < 64; ++j) {
    JobSpec spec;
    spec.adapter.r = 8 << j % 4;
    replica.jobs.push_back({.batch_size = 8,
                            .lengths = {{{32 + static_cast<int64_t>(uniform_below(64, static_cast<uint64_t>(j), 480)), 1.0}}},
                            .adapters = adapter_shapes(spec, j, replica.model)});
  }
  replica.stages = even_stages(replica.model, 8, 1);
  replica.machine = {device_preset("A40"), link_preset("pcie4"), "bfloat16"};
  replica.between_stages = link_preset("pcie4");
  replica.memory_bytes = replica.machine.device.usable_bytes();
  std::vector<double> seconds;
  ChosenHybridTasks choice;
  for (int i = 0; i < 5; ++i) {
    const double start = cpu_seconds();
    const FusionProblem problem = fusion_problem(replica, 8);
    choice = choose_hybrid_tasks(std::span(&problem, 1));
    seconds.push_back(cpu_seconds() - start);
  }
  std::sort(seconds.begin(), seconds.end());
  std::string others;
  for (const HybridTaskChoice& each : choice.rejected) others += fmt::format("; {}: {}", each.name, each.rejected_for);
  fmt::print("| 64 jobs fused, grouped and scheduled on 8 stages, LLaMA2-7B on A40, costs included | < 10 s with all planning | "
             "0.1 s | {:.3f} s; {} hybrid tasks in {} buckets{} |\n",
             seconds[seconds.size() / 2], choice.chosen.tasks.size(), choice.chosen.buckets.size(), others);
}

}  // namespace

void print_fusion_figures() {
  against_all_splits(8, 1000, 0, "mean 0.5 %, worst 5 %");
  against_all_splits(16, 100, 100'000, "mean 1 %, worst 10 %");
  against_the_bound();
  planning_of_64_jobs();
}

}  // namespace cotune
