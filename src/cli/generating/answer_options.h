#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/generating/generate_options.h"
#include "cli/inputs/adapted_model.h"

namespace cotune {

/// What answers to a file of prompts are made with, but for the prompts and how many samples there are: model, adapters, compute type and
/// every option that an answer depends on. It stands beside the answers' file, in FILE.options.json, so that --resume adds none that were
/// made otherwise.
class AnswerOptions {
 public:
  /// Of a model that need not have been loaded. Reads the adapters' files.
  AnswerOptions(const GenerateOptions& options, const AdaptedModel& model);

  /// Of a file with answers in it. Takes up the adapters that answered there and are not among ours. Throws UserError that names each
  /// option that differs, with what the file was begun with and what is given. False where nothing says what it was begun with.
  bool go_on_with(const std::filesystem::path& answers);
  /// Throws SystemError.
  void write(const std::filesystem::path& answers) const;

 private:
  nlohmann::ordered_json options_;   ///< by option, as given on the command line; values that are in effect
  nlohmann::ordered_json adapters_;  ///< by name: {folder, checksum}; null: the base model
};

/// FILE.options.json.
std::filesystem::path options_file_of(const std::filesystem::path& answers);

}  // namespace cotune
