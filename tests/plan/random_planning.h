/// Random jobs on random small clusters, and the best of all deployments by simulation: the yardstick of what planning finds.
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "base/random.h"
#include "plan/make_plan.h"
#include "plan/nodes_planner.h"

namespace cotune {

struct PlanningProblem {
  ModelConfig model;
  ClusterSpec cluster;
  std::vector<JobShape> jobs;
  PlanOptions options;  ///< sharing hybrid in the default order, nothing saved
};

/// A further job, adapted as the spec says.
inline void add_job(PlanningProblem& problem, const JobSpec& spec, const std::vector<int64_t>& lengths, int64_t batch_size) {
  const auto index = static_cast<int32_t>(problem.jobs.size());
  problem.jobs.push_back({.name = "job-" + std::to_string(index),
                          .batch_size = batch_size,
                          .lengths = histogram_of(lengths),
                          .adapters = adapter_shapes(spec, index, problem.model)});
}

inline PlanOptions hybrid_in_the_default_order() {
  PlanOptions options;
  options.sharing = {Sharing::hybrid};
  options.orders = {PipelineOrder::automatic};
  options.savings.clear();
  return options;
}

/// One to eight devices, one to four jobs.
inline PlanningProblem random_planning_problem(uint64_t seed) {
  uint64_t next = 0;
  const auto below = [&](uint64_t bound) { return static_cast<int64_t>(uniform_below(seed, next++, bound)); };
  PlanningProblem problem{.model = model_preset(below(2) == 0 ? "tinyllama-1.1b" : "llama-2-7b"), .cluster = {}, .jobs = {}, .options = {}};
  const char* const devices[] = {"A40", "RTX4090", "A100-40"};
  const char* const links[] = {"pcie4", "nvlink-600"};
  NodeGroup group{.name = "n",
                  .count = 1 + below(2),
                  .devices = int64_t{1} << (1 + below(2)),
                  .device = device_preset(devices[below(3)]),
                  .link = link_preset(links[below(2)])};
  problem.cluster.nodes = {group};
  problem.cluster.network = link_preset("infiniband-100");
  const int64_t count = 1 + below(4);
  for (int64_t j = 0; j < count; ++j) {
    std::vector<int64_t> lengths;
    for (int64_t k = 0; k < 1 + below(4); ++k) lengths.push_back(1 + below(j == 0 ? 3000 : 600));
    JobSpec spec;
    spec.adapter.r = 1 + below(32);
    spec.adapter.target_modules = {"q_proj", "v_proj", "down_proj"};
    add_job(problem, spec, lengths, 1 + below(24));
  }
  problem.options = hybrid_in_the_default_order();
  return problem;
}

/// Every vector of replica counts on the cluster's nodes, those that leave devices idle too, simulated in full. 0: none fits.
inline double best_of_all_deployments(const PlanningProblem& problem, int64_t& looked_at) {
  NodesPlanner planner(problem.model, problem.cluster, problem.cluster.nodes.front(), problem.jobs, problem.options, {});
  const std::vector<Configuration>& configurations = planner.configurations();
  const int64_t devices = problem.cluster.device_count();
  double best = 0;
  std::vector<int64_t> counts(configurations.size(), 0);
  const std::function<void(size_t, int64_t)> visit = [&](size_t i, int64_t left) {
    if (i < counts.size()) {
      for (counts[i] = 0; counts[i] * configurations[i].devices() <= left; ++counts[i]) {
        visit(i + 1, left - counts[i] * configurations[i].devices());
      }
      counts[i] = 0;
      return;
    }
    if (!planner.holds_all_rows(counts)) return;
    ++looked_at;
    const Alternative simulated = planner.simulate(System::lobra, counts, Sharing::hybrid, PipelineOrder::automatic);
    if (simulated.fits() && (best == 0 || simulated.predicted.seconds < best)) best = simulated.predicted.seconds;
  };
  visit(0, devices);
  return best;
}

}  // namespace cotune
