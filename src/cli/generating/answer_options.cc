#include "cli/generating/answer_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

#include "adapter/adapter_file.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json_text.h"
#include "cli/inputs/compute_dtype.h"
#include "train/adapter_folder.h"

namespace cotune {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

std::string text_of(const ordered_json& value) {
  if (value.is_null()) return "none";
  return value.is_string() ? value.get<std::string>() : text_of_json(value);
}

/// Of an adapter; "" of the base model, which has none.
std::string fact_of(const ordered_json& adapter, const char* name) {
  return adapter.is_object() && adapter.contains(name) && adapter[name].is_string() ? adapter[name].get<std::string>() : "";
}

ordered_json adapter_of(const fs::path& folder) {
  if (folder.empty()) return nullptr;
  return {{"folder", fs::weakly_canonical(folder).string()},
          {"checksum", adapter_checksum(folder)}};
}

}  // namespace

fs::path options_file_of(const fs::path& answers) { return answers.string() + ".options.json"; }

AnswerOptions::AnswerOptions(const GenerateOptions& options, const AdaptedModel& model) {
  const SamplingSettings sampling = sampling_of(options);
  const ChatTemplate* chat_template = model.text().chat_template();
  options_ = {{"--model", fs::weakly_canonical(model.files().path).string()},
              {"--dtype", dtype_name(model.compute())},
              {"chat template", chat_template == nullptr || options.raw ? ordered_json() : ordered_json(chat_template->hash())},
              {"--raw", options.raw},
              {"--system", options.system ? ordered_json(*options.system) : ordered_json()},
              {"--max-new-tokens", options.max_new_tokens},
              {"--stop", options.stop},
              {"--temperature", sampling.temperature},
              {"--top-p", sampling.top_p},
              {"--top-k", sampling.top_k},
              {"--min-p", sampling.min_p},
              {"--repetition-penalty", sampling.repetition_penalty},
              {"--seed", sampling.seed}};
  options_ = ordered_json::parse(text_of_json(options_));  // as they are written, so that --resume finds them equal
  adapters_ = ordered_json::object();
  for (size_t i = 0; i < model.adapter_count(); ++i) adapters_[model.name(i)] = adapter_of(model.folder(i));
}

bool AnswerOptions::go_on_with(const fs::path& answers) {
  const fs::path file = options_file_of(answers);
  if (!fs::exists(file)) return false;
  const ordered_json begun = ordered_json::parse(read_file(file), nullptr, false);
  if (!begun.is_object() || !begun.contains("options") || !begun["options"].is_object() || !begun.contains("adapters") ||
      !begun["adapters"].is_object()) {
    throw_user_error("{}: does not say what {} was made with, as `cotune generate --prompts` wrote it; without that file --resume does not compare",
                     file.string(), answers.string());
  }
  std::vector<std::string> differences;
  const ordered_json& options = begun["options"];
  for (const auto& [name, value] : options_.items()) {
    const ordered_json before = options.value(name, ordered_json());
    if (before == value) continue;
    if (name == "chat template") {
      differences.push_back("another chat template");
    } else {
      differences.push_back(fmt::format("{} {}, found {}", name, text_of(before), text_of(value)));
    }
  }
  for (const auto& [name, before] : begun["adapters"].items()) {
    if (!adapters_.contains(name)) {
      adapters_[name] = before;
    } else if (fact_of(adapters_[name], "checksum") != fact_of(before, "checksum")) {
      differences.push_back(
          fmt::format("--adapter {} as it was in {}, found other files in {}", name, fact_of(before, "folder"), fact_of(adapters_[name], "folder")));
    }
  }
  if (!differences.empty()) {
    throw_user_error("{}: was begun with {}; pass what it was begun with, or --overwrite to begin it anew", answers.string(),
                     fmt::join(differences, "; "));
  }
  return true;
}

void AnswerOptions::write(const fs::path& answers) const {
  write_file_atomically(options_file_of(answers), text_of_json(ordered_json{{"options", options_}, {"adapters", adapters_}}, 2) + "\n");
}

}  // namespace cotune
