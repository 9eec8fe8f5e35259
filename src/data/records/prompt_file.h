/// A file of prompts to be answered.
///
/// Records of JSONL (also compressed) or Parquet, with the fields of data files:
///   messages       a chat; assistant messages at its end, a data file's reference, are left out. With `system` and `tools` beside it.
///   conversations  ShareGPT's, the same
///   prompt         a text, or a list of messages with `system` and `tools` beside it
///   question       a text, as questions with choices have it; or query or problem
///   text           a text for the model to continue as it is; the record that answers carry along has it as `prompt`
///   instruction    with input?: Alpaca's prompt, for the model to continue as it is
/// or plain text, a prompt a line: a file whose name ends in .txt, or in neither .json nor .jsonl and whose first line does not begin
/// with `{`.
#pragma once

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/diagnostics.h"
#include "data/records/data_file.h"

namespace cotune {

struct FilePrompt {
  int line = 0;
  nlohmann::ordered_json record;    ///< as it stands in the file; of plain text {"prompt": …}
  nlohmann::ordered_json messages;  ///< up to the turn that is to be answered; null: there is a text
  nlohmann::ordered_json tools;     ///< null: none
  std::string text;
  bool is_whole_text = false;       ///< the model continues the text as it is, whatever template it has
  bool only_raw = false;            ///< a text for training: whether it is to be continued must be said
};

/// Of one record. Throws RecordError with the field, what was found and what is accepted.
FilePrompt prompt_of(nlohmann::ordered_json record);

class PromptFile {
 public:
  /// Throws UserError naming the file where it cannot be read.
  explicit PromptFile(std::filesystem::path path);

  /// The next prompt; nothing at the end. Throws UserMistakes, with file, line and field, where the record is none: the next call gives the
  /// one behind it, or nothing where the file is one list; UserError naming the file where it cannot be read to its end.
  std::optional<FilePrompt> next();
  std::string_view unit() { return file_.lines().unit(); }  ///< of a record in the file

 private:
  bool advance();

  std::filesystem::path path_;
  DataFile file_;
  bool begun_ = false, is_list_ = false, is_plain_ = false;
};

/// The fields that a Parquet file of prompts may have and that answers carry along.
const std::vector<std::string>& prompt_fields();

}  // namespace cotune
