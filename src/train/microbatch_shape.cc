#include "train/microbatch_shape.h"

#include <algorithm>

#include "engine/labelled_rows.h"

namespace cotune {

std::vector<MicrobatchShape> shapes_of_microbatches(const StepPlan& plan, std::span<const JobRound> rounds, size_t job_count,
                                                    StagePrices& prices) {
  const std::vector<int64_t> labelled = labelled_rows(plan, rounds);
  std::vector<MicrobatchShape> shapes;
  for (size_t m = 0; m < plan.microbatches.size(); ++m) {
    MicrobatchShape& shape = shapes.emplace_back();
    shape.counts = count_microbatch(plan.microbatches[m], labelled[m]);
    shape.counts.job_tokens.resize(job_count);
    shape.counts.job_atoms.resize(job_count);
    std::vector<int32_t> jobs;
    for (const Atom& atom : plan.microbatches[m].atoms) jobs.push_back(atom.job);
    std::sort(jobs.begin(), jobs.end());
    jobs.erase(std::unique(jobs.begin(), jobs.end()), jobs.end());
    shape.jobs = prices.jobs_number(jobs);
  }
  return shapes;
}

}  // namespace cotune
