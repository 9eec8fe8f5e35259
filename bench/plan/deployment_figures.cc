/// What planning chooses against the best of all deployments on small clusters, by simulation.
#include <fmt/format.h>

#include <algorithm>

#include "plan/random_planning.h"
#include "rows.h"

namespace cotune {

void deployment_rows() {
  double sum = 0, worst = 0;
  int64_t cases = 0, looked_at = 0, found = 0;
  for (uint64_t seed = 1000; seed < 1400; ++seed) {
    const PlanningProblem problem = random_planning_problem(seed);
    if (problem.cluster.device_count() > 4) continue;
    const PlanningResult result = make_plan(problem.model, problem.cluster, problem.jobs, problem.options);
    const double best = best_of_all_deployments(problem, looked_at);
    if (result.plan() == nullptr || best <= 0) continue;
    const double over = std::max(0.0, 100 * (result.plan()->predicted.seconds / best - 1));
    sum += over;
    worst = std::max(worst, over);
    found += over < 1e-6 ? 1 : 0;
    ++cases;
  }
  print_row(fmt::format("the step that cotune plan chooses over the best of all {} deployments of {} random problems on 2 or 4 devices, simulated",
                        looked_at, cases),
            "–", "within a few percent",
            fmt::format("mean {:.2f} %, worst {:.1f} %; the best found in {}", sum / static_cast<double>(cases), worst, found));
}

}  // namespace cotune
