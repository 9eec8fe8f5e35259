#pragma once

#include <filesystem>
#include <string>

namespace cotune {

/// The model that --model names, or the one that the adapter's folder names where that is empty; a name of the Hugging Face cache
/// becomes its folder there. adapter_folder: empty for none. Throws UserError.
std::filesystem::path model_of_adapter(const std::string& model, const std::filesystem::path& adapter_folder);

}  // namespace cotune
