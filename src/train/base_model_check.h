#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>

#include "adapter/adapter.h"
#include "model/weights/model_files.h"

namespace cotune {

/// Whether adapters were made for the model that is opened. Shapes that fit say little: any model of the same width takes them.
class BaseModelCheck {
 public:
  /// The model must outlive this. Its weights may be null.
  explicit BaseModelCheck(const ModelFiles& model) : model_(model) {}

  /// A line for whoever asked for the adapter, where its folder names another model (base_model_name_or_path); modules: those that it adapts.
  /// "": it names none, or this one. One at another place is this one where the run that left the adapter has its fingerprint (RUN/run.json); where
  /// there is none to compare with, unless its name ends in something else and it has fewer layers: folders of models are renamed. Reads all
  /// weights, once, where there is a fingerprint. Throws UserError.
  std::string warning(const std::filesystem::path& adapter_folder, std::span<const AdaptedModule> modules);

 private:
  bool is_another(const std::string& recorded, const std::filesystem::path& adapter_folder, bool has_fewer_layers);

  const ModelFiles& model_;
  std::optional<std::string> fingerprint_;
};

}  // namespace cotune
