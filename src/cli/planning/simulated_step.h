/// `cotune simulate --jobs`: one step of a jobs file, on one instance or on the replicas of a plan.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace cotune {

struct StepArguments {
  std::string jobs_file, cluster_file, profile, plan_file, dtype, svg, perfetto;
  std::vector<std::string> overrides, slow, slow_links;
  int64_t tensor_parallel = 1, pipeline_stages = 4;  ///< without a plan
  int64_t replica = 0;
  bool json = false;
};

/// Prints the step, and writes its pictures. Throws UserError.
void simulate_step(const StepArguments& arguments);

}  // namespace cotune
