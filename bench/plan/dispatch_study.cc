#include "dispatch_study.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "distributions.h"
#include "plan/cost/published_rates.h"

namespace cotune {

DispatchStudy::DispatchStudy()
    : configurations_(propose_configurations(published_7b_configurations(), table_lengths)),
      plan_(replicas_of(configurations_, {{"<1,1>", 4}, {"<2,1>", 1}, {"<1,4>", 1}, {"<4,1>", 1}, {"<8,1>", 1}})) {}

Counts DispatchStudy::lengths(uint64_t round) const { return draw(published_tasks(all_length_families[round % 3], six_tasks), round, 1); }

DispatchProblem DispatchStudy::problem(const Counts& lengths) const {
  const LengthBuckets buckets = bucket_lengths(lengths);
  return {bucket_costs(configurations_, buckets.tokens), plan_, buckets.sequences};
}

Dispatch DispatchStudy::solve(const DispatchProblem& problem) {
  return dispatch_balanced(problem.costs, problem.replicas, problem.sequences, {.gap = 0.005});
}

/// Makespans over the least ones that an integer program found (data/dispatch_optima.json).
void dispatch_optimum_rows() {
  const nlohmann::json document = nlohmann::json::parse(std::ifstream(data_file("dispatch_optima.json")));
  const std::vector<double> optima = document.at("seconds"), bounds = document.at("lower_bounds");
  COTUNE_CHECK(optima.size() == DispatchStudy::rounds && bounds.size() == DispatchStudy::rounds);
  const DispatchStudy study;
  std::vector<double> over, over_bound;
  double sum = 0;
  for (uint64_t round = 0; round < DispatchStudy::rounds; ++round) {
    const double makespan = DispatchStudy::solve(study.problem(study.lengths(round))).makespan;
    over.push_back(100 * (makespan / optima[round] - 1));
    over_bound.push_back(100 * (makespan / bounds[round] - 1));
    sum += over.back();
  }
  std::sort(over.begin(), over.end());
  std::sort(over_bound.begin(), over_bound.end());
  const auto near = std::upper_bound(over.begin(), over.end(), 1.0) - over.begin();
  print_row(
      "dispatch of 300 rounds with their buckets, 16 × 5, over the least makespan by HiGHS", "–", "within 1 %",
      fmt::format("mean {:.2f} %, median {:.2f} %, p99 {:.2f} %, worst {:.2f} %; within 1 % in {} of {}{}; at most {:.2f} % over the bound of HiGHS",
                  sum / static_cast<double>(over.size()), over[over.size() / 2], over[over.size() * 99 / 100], over.back(), near, over.size(),
                  missed_unless(over.back() <= 1), over_bound.back()));
}

}  // namespace cotune
