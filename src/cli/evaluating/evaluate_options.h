#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cli/inputs/model_options.h"
#include "evaluate/answer_match.h"

namespace CLI {
class App;
}

namespace cotune {

struct EvaluateOptions {
  ModelOptions model;
  std::string run;                 ///< of whose jobs each is evaluated on its own held-out examples
  std::vector<std::string> data;   ///< files for all adapters
  std::map<std::string, std::string> data_options;  ///< of the jobs file's section, as texts, that were given
  bool base = true;                ///< the model alone stands in the table too
  bool exact_match = false;
  MatchRules match;
  std::vector<std::string> choices;  ///< of every example
  std::optional<std::string> delimiter;
  bool raw = false, json = false;
  std::string answers;             ///< file for each example's answers
  int64_t max_new_tokens = 256, at_once = 0;
  std::vector<std::string> stop;
};

/// As the command line names what the jobs file calls `key`.
std::string reading_option(std::string key);

void add_evaluate_options(CLI::App& command, EvaluateOptions& options);

}  // namespace cotune
