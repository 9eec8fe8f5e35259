#include "cli/inputs/model_text.h"

#include <algorithm>

#include "base/error.h"
#include "base/file.h"
#include "formats/gguf.h"
#include "jobs/hub_cache.h"

namespace cotune {
namespace {

/// What is missing, and how to come by it.
std::string missing_tokenizer(const std::filesystem::path& model) {
  if (!std::filesystem::is_directory(model)) {
    return fmt::format(
        "{}: has no tokenizer: text needs a tokenizer.json beside the weights, or a GGUF file with a vocabulary (data with "
        "input_ids and labels needs none)",
        model.empty() ? "the model" : model.string());
  }
  std::string message =
      fmt::format("{}: has no tokenizer.json, which text needs (data with input_ids and labels needs none)", model.string());
  for (const char* other : {"tokenizer.model", "vocab.json", "spiece.model"}) {
    if (!std::filesystem::exists(model / other)) continue;
    return message + fmt::format(
                         "; {} alone is not read: `AutoTokenizer.from_pretrained('{}').save_pretrained('{}')` of transformers makes "
                         "tokenizer.json of it",
                         other, model.string(), model.string());
  }
  const std::string fetch = hub_part_hint(model);
  return message + (fetch.empty() ? "; copy it from where the weights come from" : fetch);
}

/// Stands in for the tokenizer of a model without one: data that are token ids already need none.
class NoTokenizer : public TextEncoder {
 public:
  explicit NoTokenizer(std::filesystem::path model) : model_(std::move(model)) {}
  std::vector<int32_t> encode_plain(std::string_view, bool) const override { refuse(); }
  std::vector<SpecialMatch> find_special(std::string_view) const override { refuse(); }
  std::string token_bytes(int32_t id) const override { return "<" + std::to_string(id) + ">"; }
  std::vector<int32_t> prefix() const override { refuse(); }
  std::optional<int32_t> eos_id() const override { refuse(); }
  void need_tokenizer() const override { refuse(); }
  std::string hash() const override { return "none"; }

 private:
  [[noreturn]] void refuse() const { throw UserError(missing_tokenizer(model_)); }
  std::filesystem::path model_;
};

std::unique_ptr<Tokenizer> make_tokenizer(const ModelFiles& files) {
  const TokenizerFiles& source = files.tokenizer;
  if (source.tokenizer_json) return std::make_unique<Tokenizer>(Tokenizer::from_json_file(*source.tokenizer_json));
  if (source.gguf) return std::make_unique<Tokenizer>(Tokenizer::from_gguf(*source.gguf, files.path.string()));
  return nullptr;
}

std::optional<int32_t> eos_of(const ModelFiles& files, const Tokenizer& tokenizer) {
  if (const auto id = tokenizer.token_id(files.tokenizer.eos_token); id && !files.tokenizer.eos_token.empty()) return id;
  if (!files.config.eos_token_ids.empty()) return files.config.eos_token_ids.front();
  return std::nullopt;
}

/// The special token that ends an answer as the template has it, and as it is learned from chats: not always one of those that the model's files
/// name (base models with a chat template). Nothing where the template has none, or refuses so plain a chat.
std::optional<int32_t> closing_token(const ChatTemplate& chat_template, const TextEncoder& encoder) {
  const nlohmann::ordered_json chat = {{{"role", "user"}, {"content", "."}}, {{"role", "assistant"}, {"content", "."}}};
  try {
    const TrainingText text = chat_template.for_training(chat, nullptr, encoder);
    if (text.learned.empty()) return std::nullopt;
    const ByteRange& answer = text.learned.back();
    const std::string_view learned = std::string_view(text.text.bytes()).substr(answer.begin, answer.end - answer.begin);
    const std::vector<SpecialMatch> special = encoder.find_special(learned);
    if (!special.empty() && special.back().end == learned.size()) return special.back().id;
  } catch (const UserError&) {
  }
  return std::nullopt;
}

/// A path in a jobs file is absolute by now: what has no folder, and is none of the Hugging Face cache, is a preset, whatever lies in the working
/// directory.
ModelConfig config_of(const ModelSpec& spec) {
  const std::filesystem::path path = model_path(spec.config);
  return path.has_parent_path() ? find_model_config(path.string()) : model_preset(spec.config);
}

}  // namespace

ModelText::ModelText(const ModelFiles& files)
    : tokenizer_(make_tokenizer(files)), end_of_turn_ids_(files.tokenizer.end_of_turn_ids) {
  if (tokenizer_ == nullptr) {
    encoder_ = std::make_unique<NoTokenizer>(files.path);
    return;
  }
  const std::optional<int32_t> eos = eos_of(files, *tokenizer_);
  encoder_ = std::make_unique<TokenizerEncoder>(*tokenizer_, eos);
  const TokenizerFiles& source = files.tokenizer;
  for (const auto& [name, token] : {std::pair{"bos_token", source.bos_token}, std::pair{"eos_token", source.eos_token},
                                    std::pair{"pad_token", source.pad_token}, std::pair{"unk_token", source.unk_token}}) {
    if (!token.empty()) special_tokens_[name] = token;
  }
  if (end_of_turn_ids_.empty() && eos) end_of_turn_ids_.push_back(*eos);
  if (!source.chat_template.empty() || !source.tool_use_template.empty()) {
    take_template(std::make_unique<ChatTemplate>(source.chat_template, files.path.string() + ": chat template", special_tokens_,
                                                 source.tool_use_template));
  }
}

void ModelText::use_template(const std::filesystem::path& file) { take_template(make_template(file)); }

void ModelText::take_template(std::unique_ptr<ChatTemplate> chat_template) {
  chat_template_ = std::move(chat_template);
  const std::optional<int32_t> closing = closing_token(*chat_template_, *encoder_);
  if (closing && std::ranges::count(end_of_turn_ids_, *closing) == 0) end_of_turn_ids_.push_back(*closing);
}

std::vector<int32_t> ModelText::end_ids_like(std::span<const int32_t> learned) const {
  std::vector<int32_t> ids = end_of_turn_ids_;
  if (!learned.empty() && tokenizer().is_special(learned.back())) ids.push_back(learned.back());
  return ids;
}

const Tokenizer& ModelText::tokenizer() const {
  encoder_->need_tokenizer();
  return *tokenizer_;
}

std::unique_ptr<ChatTemplate> ModelText::make_template(const std::filesystem::path& file) const {
  return std::make_unique<ChatTemplate>(read_file(file), file.string(), special_tokens_);
}

ModelFiles model_without_weights(const ModelSpec& spec) {
  const std::string source = model_path(spec.path.empty() ? spec.config : spec.path).string();
  ModelFiles files{.path = source, .config = spec.path.empty() ? config_of(spec) : find_model_config(source), .tokenizer = {}, .weights = nullptr};
  std::filesystem::path folder = source;
  if (folder.filename() == "config.json") folder = folder.parent_path();
  if (std::filesystem::is_directory(folder)) {
    files.tokenizer = find_tokenizer_files(folder, files.config.eos_token_ids);
  } else if (std::filesystem::is_regular_file(folder) && folder.extension() == ".gguf") {
    files.tokenizer = tokenizer_files_of(GgufFile(folder));
  }
  return files;
}

ModelParts open_cached_model(const std::filesystem::path& path, Diagnostics& mistakes) {
  const size_t before = mistakes.size();
  ModelParts parts = open_model(path, mistakes);
  const std::string complaint = hub_part_complaint(path);
  if (!complaint.empty() && mistakes.size() > before) mistakes.add(path.string(), 0, "", complaint);
  return parts;
}

ModelFiles open_cached_model(const std::filesystem::path& path) {
  Diagnostics mistakes;
  ModelParts parts = open_cached_model(path, mistakes);
  mistakes.throw_if_any();
  return std::move(parts.files);
}

ModelParts find_model(const ModelSpec& spec, Diagnostics& mistakes) {
  if (!spec.path.empty()) return open_cached_model(model_path(spec.path), mistakes);
  try {
    return {random_model(config_of(spec), spec.seed), true, true, true};
  } catch (const UserError& error) {
    mistakes.add(error);
    return {};
  }
}

}  // namespace cotune
