#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cli/evaluating/evaluate_options.h"
#include "cli/evaluating/evaluated_data.h"
#include "cli/generating/answer_file.h"
#include "cli/inputs/adapted_model.h"
#include "evaluate/result_table.h"

namespace cotune {

struct Evaluated {
  std::vector<EvaluationResult> results;
  std::set<size_t> not_finite;  ///< adapters of the model whose output was not: their values are NaN
};

/// Losses, answers and choices of all adapters on all examples, all that the options ask for, with progress on standard error. The model
/// has been loaded. write: of --answers, a line of JSON; empty: none are wanted. Nothing where Ctrl-C ended it.
std::optional<Evaluated> evaluate_all(const EvaluateOptions& options, const AdaptedModel& model, const std::vector<EvaluatedData>& data,
                                      const std::function<void(const std::string& line)>& write);

}  // namespace cotune
