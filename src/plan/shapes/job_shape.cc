#include "plan/shapes/job_shape.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "jobs/target_modules.h"
#include "schedule/adapter_shape.h"

namespace cotune {
namespace {

/// Without the rows that are longer.
LengthHistogram up_to(LengthHistogram lengths, int64_t longest) {
  std::erase_if(lengths.weights, [longest](const auto& each) { return each.first > longest; });
  return lengths;
}

std::optional<LengthHistogram> lengths_of(const JobSpec& job, const ReadLengths& read_lengths, Diagnostics& mistakes) {
  if (!job.data.lengths.empty()) return given_lengths(job, mistakes);
  if (!read_lengths) {
    const OptionPlace place = job.place_of("data.lengths");
    mistakes.add(place.file, place.line, place.field, "is missing, and the data itself is not read here");
    return std::nullopt;
  }
  try {
    return read_lengths(job);
  } catch (const UserError& error) {
    mistakes.add(error);  // the reader's own places
    return std::nullopt;
  }
}

}  // namespace

std::vector<AdapterShape> adapter_shapes(const JobSpec& job, int32_t index, const ModelConfig& model) {
  std::vector<AdapterShape> shapes;
  for (const AdaptedModule& module : resolve_target_modules(job, model.layer_count)) {
    if (module.projection == Projection::gate && !model.gated) continue;
    shapes.push_back(adapter_shape(index, job.adapter, module, model));
  }
  return shapes;
}

std::optional<LengthHistogram> given_lengths(const JobSpec& job, Diagnostics& mistakes) {
  try {
    return find_histogram(job.data.lengths);
  } catch (const UserError& error) {
    const OptionPlace place = job.place_of("data.lengths");
    mistakes.add(place.file, place.line, place.field, error.what());
    return std::nullopt;
  }
}

std::vector<JobShape> job_shapes(const std::vector<JobSpec>& jobs, const ModelConfig& model,
                                 const ReadLengths& read_lengths) {
  Diagnostics mistakes;
  std::vector<JobShape> shapes;
  for (const JobSpec& job : jobs) {
    JobShape& shape = shapes.emplace_back();
    shape.name = job.name;
    shape.batch_size = job.train.batch_size;
    const bool has_momentum = job.train.momentum > 0;
    shape.moment_count = job.train.optimizer == OptimizerKind::adamw ? 2 : has_momentum ? 1 : 0;
    try {
      shape.adapters = adapter_shapes(job, static_cast<int32_t>(shapes.size()) - 1, model);
    } catch (const UserError& error) {
      mistakes.add(error);
    }
    const std::optional<LengthHistogram> lengths = lengths_of(job, read_lengths, mistakes);
    if (!lengths) continue;
    int64_t longest = model.context_length;
    if (job.data.max_length > 0) longest = std::min(longest, job.data.max_length);
    double longer = 0;
    for (const auto& [length, weight] : lengths->weights) longer += length > longest ? weight : 0;
    const bool drops = job.data.truncation == Truncation::drop, is_too_long = longer > 0 && job.data.truncation == Truncation::error;
    if (is_too_long || (drops && longer == lengths->total())) {
      const OptionPlace place = job.place_of("data.lengths");
      mistakes.add(place.file, place.line, place.field,
                   is_too_long ? fmt::format("{:.0f}% of the rows are longer than {} tokens, and data.truncation is error",
                                             100 * longer / lengths->total(), longest)
                               : fmt::format("every row is longer than {} tokens, and data.truncation is drop", longest));
      continue;
    }
    shape.truncated_share = drops ? 0 : longer / lengths->total();
    shape.lengths = drops ? up_to(*lengths, longest) : truncated(*lengths, longest);
  }
  mistakes.throw_if_any();
  return shapes;
}

}  // namespace cotune
