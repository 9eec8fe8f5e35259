/// What a merged Hugging Face folder holds beside its weights.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "model/weights/model_files.h"

namespace cotune {

inline constexpr const char* config_file = "config.json";

/// Of a model that is a folder its config.json as it is, or with `dtype` where that is given; of a GGUF file one that is made of its metadata,
/// with `dtype`, which is then needed. Throws UserError where the file's rotary frequencies have no name in config.json, and where a
/// config.json that is to be changed has values nested deeper than 64 levels.
std::string merged_config(const ModelFiles& model, std::optional<at::ScalarType> dtype);

/// The rest. Of a folder every file but hidden ones, weights and adapter_config.json, and of its folders additional_chat_templates, as they
/// are; of a GGUF file what format_tokenizer_files (model/config/tokenizer_files.h) makes of its metadata.
void write_other_files(const ModelFiles& model, const std::filesystem::path& output);

}  // namespace cotune
