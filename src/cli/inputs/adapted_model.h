#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "adapter/adapter.h"
#include "cli/inputs/adapter_choice.h"
#include "cli/inputs/model_text.h"
#include "device/compute_device.h"
#include "engine/backbone.h"

namespace cotune {

/// A model and adapters for use without training, all on one device.
class AdaptedModel {
 public:
  /// Reads what says what they are; no weights. adapters: none stands for the base model. model: of --model. Throws UserError.
  AdaptedModel(const std::string& model, std::vector<NamedAdapter> adapters, const std::string& dtype, const std::string& device);
  AdaptedModel(ModelFiles model, std::vector<NamedAdapter> adapters, const std::string& dtype, const std::string& device);

  /// A user's chat template in place of the model's own. Throws UserError.
  void use_template(const std::filesystem::path& file) { text_.use_template(file); }

  /// Reads the weights: mistakes in what is asked are to be found before.
  void load();

  size_t adapter_count() const { return names_.size(); }
  const std::string& name(size_t index) const { return names_[index].name; }
  const std::filesystem::path& folder(size_t index) const { return names_[index].folder; }  ///< of the adapter; empty: the base model
  /// From load() on; nullptr: the base model.
  Adapter* adapter(size_t index) const { return adapters_[index].get(); }
  /// It is ready for short rows alone, whatever the model's context: Backbone::allow_rows is for who computes with longer ones, as a
  /// Generator does by itself.
  const std::shared_ptr<Backbone>& backbone() const { return backbone_; }
  const ModelFiles& files() const { return files_; }
  const ModelText& text() const { return text_; }
  at::ScalarType compute() const { return compute_; }
  /// Bytes that could be taken now on the device.
  int64_t free_bytes() const;

  /// The tokens of a prompt as it stands, and of a chat up to the turn to be answered, by the template. tools: or null. Throws
  /// UserError.
  std::vector<int32_t> plain_prompt(const std::string& text) const;
  std::vector<int32_t> chat_prompt(const nlohmann::ordered_json& messages, const nlohmann::ordered_json& tools = nullptr) const;
  /// The text of an answer as data have it: without the tokens that end it.
  std::string answer_text(std::span<const int32_t> tokens) const;
  /// Throws SystemError: what the model computed with that adapter holds NaN or infinity.
  [[noreturn]] void throw_not_finite(size_t index) const;
  /// Throws UserError naming `option` where there is no template.
  void need_template(const std::string& option) const;

 private:
  AdaptedModel(ComputeDevice device, const std::function<ModelFiles()>& open, std::vector<NamedAdapter> adapters, const std::string& dtype);

  std::vector<NamedAdapter> names_;
  ComputeDevice device_;
  ModelFiles files_;
  ModelText text_;
  at::ScalarType compute_;
  std::shared_ptr<Backbone> backbone_;
  std::vector<std::unique_ptr<Adapter>> adapters_;
};

}  // namespace cotune
