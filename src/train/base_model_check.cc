#include "train/base_model_check.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "jobs/hub_cache.h"
#include "train/adapter_folder.h"

namespace cotune {
namespace {

namespace fs = std::filesystem;

/// What a model is called wherever it lies: `SmolLM2-135M` of `org/SmolLM2-135M@main`, of its folder in the cache and of `models/SmolLM2-135M.gguf`.
std::string last_part(const fs::path& model) {
  std::optional<HubName> name = hub_name_of(model);
  if (!name && !fs::exists(model)) name = parse_hub_name(model.string());
  fs::path path = name ? fs::path(name->file.empty() ? name->repository : name->file) : model.lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  return path.extension() == ".gguf" ? path.stem().string() : path.filename().string();
}

/// Of the model that the run had which left the adapter in RUN/jobs/NAME or RUN/sweeps/NAME; "": there is none, or it cannot be read.
std::string recorded_fingerprint(const fs::path& adapter_folder) {
  std::error_code unknown;
  const fs::path folder = fs::canonical(adapter_folder, unknown);
  for (fs::path place = folder; place.has_relative_path(); place = place.parent_path()) {
    const fs::path kind = place.parent_path();
    if (kind.filename() != "jobs" && kind.filename() != "sweeps") continue;
    try {
      const auto record = nlohmann::json::parse(read_file(kind.parent_path() / "run.json"));
      return record.value("emulated", "").empty() ? record.value("model_fingerprint", "") : "";
    } catch (const UserError&) {
      return "";
    } catch (const nlohmann::json::exception&) {
      return "";
    }
  }
  return "";
}

/// `, whose layers 2 to 5 have none of it`, where it adapts all layers of a model that has fewer; else "".
std::string layers_without(std::span<const AdaptedModule> modules, int64_t layer_count) {
  std::set<int64_t> layers;
  for (const AdaptedModule& module : modules) layers.insert(module.layer);
  const auto count = static_cast<int64_t>(layers.size());
  if (count == 0 || *layers.rbegin() + 1 != count || count >= layer_count) return "";
  return layer_count - count == 1 ? fmt::format(", whose layer {} has none of it", count)
                                  : fmt::format(", whose layers {} to {} have none of it", count, layer_count - 1);
}

}  // namespace

bool BaseModelCheck::is_another(const std::string& recorded, const fs::path& adapter_folder, bool has_fewer_layers) {
  const fs::path path = model_path(recorded);
  std::error_code unknown;
  if (fs::equivalent(path, model_.path, unknown)) return false;
  // Fingerprints are of files: those of a folder and of a GGUF file differ for the same model.
  const bool is_same_format = (path.extension() == ".gguf") == (model_.path.extension() == ".gguf");
  if (model_.weights != nullptr && is_same_format) {
    if (const std::string before = recorded_fingerprint(adapter_folder); !before.empty()) {
      if (!fingerprint_) {
        fingerprint_ = model_fingerprint(model_);
        model_.weights->drop_pages();
      }
      return before != *fingerprint_;
    }
  }
  return has_fewer_layers && last_part(recorded) != last_part(model_.path);
}

std::string BaseModelCheck::warning(const fs::path& adapter_folder, std::span<const AdaptedModule> modules) {
  if (model_.path.empty()) return "";
  const std::string recorded = recorded_base_model(adapter_folder);
  const std::string layers = layers_without(modules, model_.config.layer_count);
  if (recorded.empty() || !is_another(recorded, adapter_folder, !layers.empty())) return "";
  return fmt::format("warning: {} is an adapter of {}, the opened model is {}{}", adapter_folder.string(), recorded, model_.path.string(), layers);
}

}  // namespace cotune
