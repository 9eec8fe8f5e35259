/// Prints the dispatch problems of dispatch_study.h as JSON, for an exact solver (bench/plan/solve_dispatch.py).
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "dispatch_study.h"

int main() {
  using namespace cotune;
  const DispatchStudy study;
  nlohmann::json problems = nlohmann::json::array();
  for (uint64_t round = 0; round < DispatchStudy::rounds; ++round) {
    const DispatchProblem problem = study.problem(study.lengths(round));
    nlohmann::json costs = nlohmann::json::array();
    for (const BucketCosts& each : problem.costs) costs.push_back({{"seconds", each.seconds}, {"fill", each.fill}});
    problems.push_back({{"configurations", costs}, {"replicas", problem.replicas}, {"sequences", problem.sequences}});
  }
  fmt::print("{}\n", problems.dump());
}
