#include "cli/inputs/adapted_model.h"

#include <algorithm>

#include "base/abrupt_exit.h"
#include "base/error.h"
#include "cli/inputs/compute_dtype.h"
#include "cli/inputs/model_of_adapter.h"
#include "data/example_builder.h"
#include "jobs/hub_cache.h"
#include "ops/memory.h"
#include "train/adapter_folder.h"
#include "train/process_memory.h"

namespace cotune {
namespace {

constexpr int64_t first_positions = 4096;  // more are made room for when they come: contexts may have a million

at::ScalarType compute_of(const std::string& dtype, const ComputeDevice& device) {
  ModelSpec spec;
  spec.dtype = dtype;
  return compute_dtype(spec, device);
}

std::vector<NamedAdapter> or_base(std::vector<NamedAdapter> adapters) {
  if (adapters.empty()) adapters.push_back({base_name, {}});
  return adapters;
}

}  // namespace

AdaptedModel::AdaptedModel(const std::string& model, std::vector<NamedAdapter> adapters, const std::string& dtype,
                           const std::string& device)
    : AdaptedModel(
          choose_device(device, "--device"), [&] { return open_cached_model(model_of_adapters(model, adapters)); }, adapters, dtype) {}

AdaptedModel::AdaptedModel(ModelFiles model, std::vector<NamedAdapter> adapters, const std::string& dtype, const std::string& device)
    : AdaptedModel(choose_device(device, "--device"), [&] { return std::move(model); }, std::move(adapters), dtype) {}

AdaptedModel::AdaptedModel(ComputeDevice device, const std::function<ModelFiles()>& open, std::vector<NamedAdapter> adapters,
                           const std::string& dtype)
    : names_(or_base(std::move(adapters))),
      device_(std::move(device)),
      files_(open()),
      text_(files_),
      compute_(compute_of(dtype, device_)) {
  if (!device_.notice.empty()) write_to_standard_error(device_.notice + "\n");
}

void AdaptedModel::load() {
  BaseModelCheck base(files_);
  for (const NamedAdapter& named : names_) {
    adapters_.push_back(named.folder.empty() ? nullptr : open_adapter(named.folder, files_.config, files_.path, compute_, device_.device));
    if (adapters_.back() != nullptr) warn_of_other_model(base, named.folder, adapters_.back()->setup().modules);
  }
  backbone_ = Backbone::load(files_, compute_, device_.device, {.training = false, .positions = first_positions});
  release_unused_memory();
}

int64_t AdaptedModel::free_bytes() const { return device_.is_cpu() ? available_memory_bytes() : device_.memory().free_bytes; }

std::vector<int32_t> AdaptedModel::plain_prompt(const std::string& text) const {
  std::vector<int32_t> tokens = text_.encoder().prefix();
  const std::vector<int32_t> own = text_.encoder().encode_plain(text);
  tokens.insert(tokens.end(), own.begin(), own.end());
  return tokens;
}

std::vector<int32_t> AdaptedModel::chat_prompt(const nlohmann::ordered_json& messages, const nlohmann::ordered_json& tools) const {
  Example example;
  encode_training_text({text_.chat_template()->render(messages, {true, tools, std::nullopt}), {}}, text_.encoder(), example);
  return example.tokens;
}

std::string AdaptedModel::answer_text(std::span<const int32_t> tokens) const {
  const std::vector<int32_t>& ends = text_.end_of_turn_ids();
  const auto is_end = [&](int32_t token) { return std::ranges::find(ends, token) != ends.end() || token == text_.encoder().eos_id(); };
  while (!tokens.empty() && is_end(tokens.back())) tokens = tokens.first(tokens.size() - 1);
  return text_.tokenizer().decode(tokens, true);
}

void AdaptedModel::throw_not_finite(size_t index) const {
  throw SystemError(fmt::format("the output of `{}` is not finite: the model's weights or the adapter's hold NaN or infinity", name(index)));
}

void AdaptedModel::need_template(const std::string& option) const {
  text_.encoder().need_tokenizer();
  if (text_.chat_template() != nullptr) return;
  throw_user_error("{}: has no chat template, which {} needs{}", files_.path.string(), option, hub_part_hint(files_.path));
}

}  // namespace cotune
