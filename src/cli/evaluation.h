#pragma once

#include <optional>
#include <vector>

#include "cli/adapted_model.h"
#include "cli/answer_file.h"
#include "cli/evaluate_options.h"
#include "cli/evaluated_data.h"
#include "evaluate/result_table.h"

namespace cotune {

/// Losses, answers and choices of all adapters on all examples, all that the options ask for, with progress on standard error. The model
/// has been loaded. write: of --answers, a line of JSON; empty: none are wanted. Nothing where Ctrl-C ended it. Throws SystemError where a
/// model's output was not finite.
std::optional<std::vector<EvaluationResult>> evaluate_all(const EvaluateOptions& options, const AdaptedModel& model,
                                                          const std::vector<EvaluatedData>& data,
                                                          const std::function<void(const std::string& line)>& write);

}  // namespace cotune
