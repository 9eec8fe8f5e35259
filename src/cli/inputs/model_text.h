#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/template/chat_template.h"
#include "data/text_encoder.h"
#include "data/tokenizer/tokenizer.h"
#include "jobs/job.h"
#include "model/weights/model_files.h"

namespace cotune {

/// The text side of a model: its tokenizer and chat template, from a Hugging Face folder or a GGUF file.
class ModelText {
 public:
  /// Throws UserError for an unsupported tokenizer, or a template that cannot be parsed. Without a tokenizer encoder()
  /// throws UserError when text is given to it, and tokenizer() always.
  explicit ModelText(const ModelFiles& files);

  bool has_tokenizer() const { return tokenizer_ != nullptr; }
  const Tokenizer& tokenizer() const;
  const TextEncoder& encoder() const { return *encoder_; }
  /// The model's own, or that of use_template(); nullptr where there is none.
  const ChatTemplate* chat_template() const { return chat_template_.get(); }
  /// A template from a user's file, with the model's special tokens.
  std::unique_ptr<ChatTemplate> make_template(const std::filesystem::path& file) const;
  /// From here on that one in place of the model's own.
  void use_template(const std::filesystem::path& file);
  /// Tokens at which an answer ends: those that the model's files name, and the one that closes an answer in its chat template.
  const std::vector<int32_t>& end_of_turn_ids() const { return end_of_turn_ids_; }
  /// The same of answers like a learned one: also its last token, where that is special. It closes answers of data that were made with
  /// another template than the model's own.
  std::vector<int32_t> end_ids_like(std::span<const int32_t> learned) const;

 private:
  void take_template(std::unique_ptr<ChatTemplate> chat_template);

  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<TextEncoder> encoder_;
  std::map<std::string, std::string> special_tokens_;
  std::unique_ptr<ChatTemplate> chat_template_;
  std::vector<int32_t> end_of_turn_ids_;
};

/// open_model(), with the command that fetches the rest where a model of the Hugging Face cache has mistakes.
ModelParts open_cached_model(const std::filesystem::path& path, Diagnostics& mistakes);
/// The same; throws UserError with all mistakes.
ModelFiles open_cached_model(const std::filesystem::path& path);

/// Opens what the model section names: a path, or a configuration with random weights. Mistakes are added to `mistakes`.
ModelParts find_model(const ModelSpec& spec, Diagnostics& mistakes);

/// Its shape and text side. No weights are read, nor need they be there: `weights` is null. Throws UserError.
ModelFiles model_without_weights(const ModelSpec& spec);

}  // namespace cotune
