#pragma once

#include <string>
#include <vector>

#include "cli/evaluating/evaluate_options.h"
#include "cli/inputs/adapted_model.h"
#include "cli/inputs/data_reading.h"
#include "data/dataset.h"
#include "evaluate/choice_likelihoods.h"

namespace cotune {

/// Questions with choices, as tokens.
struct ChoiceQuestions {
  std::vector<TokenizedChoices> tokens;
  std::vector<std::vector<std::string>> texts;  ///< of the choices
  std::vector<size_t> answers;
  std::vector<int> lines;
};

/// One set of examples, and the adapters that are tried on it.
struct EvaluatedData {
  std::string name;
  std::vector<size_t> adapters;  ///< of the model's; changes are told from the first
  Dataset examples;              ///< empty where the file holds questions with choices
  Dataset answered;              ///< the same with their answers alone learned, also where examples learn prompts (train_on_prompt)
  ChoiceQuestions questions;     ///< with --choices of the examples too
};

/// Of a job, the set to evaluate on, whose examples read_data() has given in `read`, as EvaluatedData::answered; `part` says which they
/// are. Adds mistakes where --exact-match or --choices is given and they have no answers that can be told from what they are answers to.
Dataset answered_examples(const JobSpec& job, const JobData& read, Dataset JobData::*part, const EvaluateOptions& options,
                          const AdaptedModel& model, const DataReading& reading, Diagnostics& mistakes);

/// --choices of answered examples, whose last answers must each be one of them. Adds mistakes.
ChoiceQuestions questions_of(const Dataset& answered, const EvaluateOptions& options, const AdaptedModel& model, Diagnostics& mistakes);

/// Reads --data for all adapters of the model. Throws UserError with every mistake.
std::vector<EvaluatedData> read_evaluated_data(const EvaluateOptions& options, const AdaptedModel& model);

}  // namespace cotune
