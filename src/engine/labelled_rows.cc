#include "engine/labelled_rows.h"

#include <algorithm>
#include <map>

namespace cotune {
namespace {

int64_t labelled_in(const Segment& segment, const BatchRow& row) {
  int64_t count = 0;
  for (int64_t position = segment.position; position < segment.position + segment.length; ++position) {
    const auto next = static_cast<size_t>(position + 1);
    if (next < row.tokens.size() && row.learned[next] != 0) ++count;
  }
  return count;
}

}  // namespace

std::vector<int64_t> labelled_rows(const StepPlan& plan, std::span<const JobRound> rounds) {
  std::map<int32_t, const Batch*> batches;
  for (const JobRound& round : rounds) {
    const auto is_of_plan = [&](const BatchShape& batch) {
      return batch.job == round.job && batch.step == round.batch->step;
    };
    if (std::ranges::any_of(plan.batches, is_of_plan)) batches[round.job] = round.batch;
  }
  std::vector<int64_t> labelled;
  for (const Microbatch& microbatch : plan.microbatches) {
    int64_t count = 0;
    for (const Atom& atom : microbatch.atoms) {
      for (const Segment& segment : atom.segments) {
        count += labelled_in(segment, batches.at(atom.job)->rows[static_cast<size_t>(segment.row)]);
      }
    }
    labelled.push_back(count);
  }
  return labelled;
}

}  // namespace cotune
