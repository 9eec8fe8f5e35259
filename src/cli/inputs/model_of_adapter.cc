#include "cli/inputs/model_of_adapter.h"

#include "base/abrupt_exit.h"
#include "base/error.h"
#include "base/visible_text.h"
#include "jobs/hub_cache.h"
#include "train/adapter_folder.h"

namespace cotune {

namespace fs = std::filesystem;

fs::path model_of_adapter(const std::string& model, const fs::path& adapter_folder) {
  if (!model.empty()) {
    const fs::path path = model_path(model);
    if (!fs::exists(path)) {
      throw_user_error("--model: {}: no such file or folder; accepted: a Hugging Face model folder or a .gguf file{}", path.string(),
                       hub_cache_hint(path));
    }
    return path;
  }
  if (adapter_folder.empty()) throw_user_error("--model: is needed: {}", accepted_models);
  const std::string recorded = recorded_base_model(adapter_folder);
  if (recorded.empty()) {
    throw_user_error("--model: is needed: the adapter in {} does not say which model it is for", adapter_folder.string());
  }
  const fs::path path = model_path(recorded);
  if (!fs::exists(path)) {
    throw_user_error("--model: is needed: the adapter in {} is for `{}`, which is no file or folder here{}", adapter_folder.string(),
                     recorded, hub_cache_hint(path));
  }
  return path;
}

void warn_of_other_model(BaseModelCheck& model, const fs::path& adapter_folder, std::span<const AdaptedModule> modules) {
  const std::string warning = model.warning(adapter_folder, modules);
  if (!warning.empty()) write_to_standard_error(visible_text(warning) + "\n");
}

}  // namespace cotune
