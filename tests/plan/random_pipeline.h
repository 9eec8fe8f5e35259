/// Random jobs on as many nodes of one device as a model needs stages: few microbatches, and no way around a pipeline.
#pragma once

#include "base/random.h"
#include "plan/random_planning.h"

namespace cotune {

/// Two jobs or more, fewer than stages; no two devices hold the weights of Llama-2-7B, four or eight do.
inline PlanningProblem random_pipeline_problem(uint64_t seed) {
  uint64_t next = 0;
  const auto below = [&](int64_t bound) { return static_cast<int64_t>(uniform_below(seed, next++, static_cast<uint64_t>(bound))); };
  PlanningProblem problem{.model = model_preset("llama-2-7b"), .cluster = {}, .jobs = {}, .options = {}};
  const int64_t stages = below(2) == 0 ? 4 : 8;
  problem.cluster.nodes = {{.name = "n", .count = stages, .devices = 1, .device = device_preset(below(2) == 0 ? "RTX4090" : "A40"), .link = link_preset("pcie4")}};
  problem.cluster.nodes[0].device.memory_bytes = int64_t{stages == 4 ? 7 : 4} << 30;
  problem.cluster.network = link_preset("infiniband-100");
  const int64_t count = 2 + below(stages - 2);
  for (int64_t j = 0; j < count; ++j) {
    const int64_t base = int64_t{64} << below(4);
    std::vector<int64_t> lengths;
    for (int64_t k = 1 + below(4); k > 0; --k) lengths.push_back(1 + below(base));
    JobSpec spec;
    spec.adapter.target_modules = {"q_proj", "v_proj"};
    add_job(problem, spec, lengths, 1 + below(12));
  }
  problem.options = hybrid_in_the_default_order();
  return problem;
}

}  // namespace cotune
