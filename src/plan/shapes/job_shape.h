/// A job as planning sees it: how many examples of which lengths a step has, and where its adapter sits.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/diagnostics.h"
#include "jobs/job.h"
#include "model/config/model_config.h"
#include "plan/shapes/length_histogram.h"
#include "schedule/operators.h"

namespace cotune {

struct JobShape {
  std::string name;
  int64_t batch_size = 1;              ///< examples per optimizer step
  LengthHistogram lengths;             ///< after data.truncation to data.max_length and the model's context
  std::vector<AdapterShape> adapters;  ///< their `job` is this job's place in the list
  int64_t moment_count = 2;            ///< optimizer values per trained parameter
  double truncated_share = 0;          ///< of its examples, those that were longer and are cut
  bool operator==(const JobShape&) const = default;
};

/// What data.lengths of a job, which has it, says; nothing where the histogram is unknown or malformed, which is then added to `mistakes`
/// with the option's file, line and field.
std::optional<LengthHistogram> given_lengths(const JobSpec& job, Diagnostics& mistakes);

/// Lengths of the examples of a job's data.train, for jobs without data.lengths.
using ReadLengths = std::function<LengthHistogram(const JobSpec&)>;

/// One shape per job, in their order. Throws UserError that names the job's file, line and field: unknown or malformed
/// histograms, rows that data.truncation refuses or leaves none of, targets that the model lacks; data.train without `read_lengths`.
std::vector<JobShape> job_shapes(const std::vector<JobSpec>& jobs, const ModelConfig& model,
                                 const ReadLengths& read_lengths = nullptr);

/// Where a job's adapter sits. A model without gate has no gate_proj to adapt.
std::vector<AdapterShape> adapter_shapes(const JobSpec& job, int32_t index, const ModelConfig& model);

}  // namespace cotune
