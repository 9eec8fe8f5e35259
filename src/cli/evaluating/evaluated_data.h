#pragma once

#include <string>
#include <vector>

#include "cli/evaluating/evaluate_options.h"
#include "cli/inputs/adapted_model.h"
#include "data/dataset.h"
#include "evaluate/choice_likelihoods.h"

namespace cotune {

/// Questions with choices, as tokens.
struct ChoiceQuestions {
  std::vector<TokenisedChoices> tokens;
  std::vector<std::vector<std::string>> texts;  ///< of the choices
  std::vector<size_t> answers;
  std::vector<int> lines;
};

/// One set of examples, and the adapters that are tried on it.
struct EvaluatedData {
  std::string name;
  std::vector<size_t> adapters;  ///< of the model's; changes are told from the first
  Dataset examples;              ///< empty where the file holds questions with choices
  ChoiceQuestions questions;     ///< with --choices of the examples too
};

/// Adds mistakes where --exact-match or --choices is given and the examples, which were read from these files as spec says, have no
/// answers that can be told from what they are answers to.
void check_answerable(const DataSpec& spec, const std::vector<FileReport>& files, const Dataset& examples, const EvaluateOptions& options,
                      Diagnostics& mistakes);

/// --choices of examples, whose last answers must each be one of them. Adds mistakes.
ChoiceQuestions questions_of(const Dataset& examples, const EvaluateOptions& options, const AdaptedModel& model, Diagnostics& mistakes);

/// Reads --data for all adapters of the model. Throws UserError with every mistake.
std::vector<EvaluatedData> read_evaluated_data(const EvaluateOptions& options, const AdaptedModel& model);

}  // namespace cotune
