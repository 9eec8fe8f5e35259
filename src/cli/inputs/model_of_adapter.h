#pragma once

#include <filesystem>
#include <span>
#include <string>

#include "train/base_model_check.h"

namespace cotune {

/// The model that --model names, or the one that the adapter's folder names where that is empty; a name of the Hugging Face cache
/// becomes its folder there. adapter_folder: empty for none. Throws UserError.
std::filesystem::path model_of_adapter(const std::string& model, const std::filesystem::path& adapter_folder);

/// Says on standard error where the adapter in the folder was made for another model than the one that is opened.
void warn_of_other_model(BaseModelCheck& model, const std::filesystem::path& adapter_folder, std::span<const AdaptedModule> modules);

}  // namespace cotune
