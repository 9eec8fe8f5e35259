#include "adapter/adapter_file.h"

#include <ATen/ATen.h>

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "adapter/adapter_config_fields.h"
#include "base/diagnostics.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json_mistake.h"
#include "base/json_text.h"
#include "formats/safetensors.h"
#include "formats/safetensors_writer.h"
#include "jobs/adapter_methods.h"
#include "jobs/enum_names.h"
#include "jobs/hub_cache.h"
#include "jobs/target_modules.h"
#include "model/weights/data_type_conversion.h"
#include "ops/memory.h"

namespace cotune {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* pickled_model_file = "adapter_model.bin";

const char* peft_type(AdapterMethod method) {
  switch (method) {
    case AdapterMethod::lora: return "LORA";
    case AdapterMethod::bottleneck: return "COTUNE_BOTTLENECK";
    case AdapterMethod::diff_pruning: return "COTUNE_DIFF_PRUNING";
  }
  return "";
}

/// Tensors on their way to a file.
class Writer {
 public:
  void add(const std::string& name, const at::Tensor& tensor) {
    DataType dtype = DataType::f32;
    if (tensor.scalar_type() == at::kDouble) dtype = DataType::f64;
    if (tensor.scalar_type() == at::kInt) dtype = DataType::i32;
    if (tensor.scalar_type() == at::kLong) dtype = DataType::i64;
    plans_.push_back({name, dtype, tensor.sizes().vec()});
    tensors_[name] = tensor;
  }

  void write(const TakeBytes& take) {
    plans_ = in_file_order(std::move(plans_));
    take(safetensors_header(plans_, {{"format", "pt"}}));
    for (const TensorPlan& plan : plans_) {
      const at::Tensor plain = tensors_.at(plan.name).cpu().contiguous();
      COTUNE_CHECK(plain.nbytes() == plan.byte_count(), "{}: {} bytes for {}", plan.name, plain.nbytes(), plan.byte_count());
      take({static_cast<const char*>(plain.const_data_ptr()), plain.nbytes()});
    }
  }

 private:
  std::vector<TensorPlan> plans_;
  std::map<std::string, at::Tensor> tensors_;
};

at::Tensor to_tensor(const TensorView& view) {
  at::Tensor tensor = at::empty(view.shape, at::TensorOptions().dtype(scalar_type_of(view.dtype)));
  std::copy(view.bytes.begin(), view.bytes.end(), static_cast<std::byte*>(tensor.mutable_data_ptr()));
  return tensor;
}

std::string shape_text(at::IntArrayRef shape) { return fmt::format("[{}]", fmt::join(shape.begin(), shape.end(), ", ")); }

void assign(at::Tensor& target, const TensorView& view, bool transposed, const std::string& place) {
  if (!is_weight_type(scalar_type_of(view.dtype))) {
    throw_user_error("{}: has type {}; accepted: F64, F32, F16, BF16", place, safetensors_name(view.dtype));
  }
  const at::Tensor source = to_tensor(view);
  const at::Tensor oriented = transposed && source.dim() == 2 ? source.t() : source;
  if (oriented.sizes() != target.sizes()) {
    throw_user_error("{}: has shape {}, {} is expected", place, shape_text(source.sizes()),
                     shape_text(transposed ? target.t().sizes() : target.sizes()));
  }
  target.copy_(oriented);
}

/// Modules of the adapter as PEFT's config says them: names, and patterns for what differs from the common value.
void add_lora_config(Json& config, const Adapter& adapter) {
  const AdapterSpec& spec = adapter.setup().spec;
  config["r"] = spec.r;
  config["lora_alpha"] = spec.alpha;
  config["lora_dropout"] = spec.dropout;
  config["use_rslora"] = spec.use_rslora;
  config["bias"] = "none";
  config["fan_in_fan_out"] = false;
  config["init_lora_weights"] = true;
  config["modules_to_save"] = nullptr;
  config["use_dora"] = false;
  Json ranks = Json::object(), alphas = Json::object();
  for (const AdaptedModule& module : adapter.setup().modules) {
    const std::string name = module_name(module.layer, module.projection);
    if (module.r != spec.r) ranks[name] = module.r;
    if (module.alpha != spec.alpha) alphas[name] = module.alpha;
  }
  config["rank_pattern"] = ranks;
  config["alpha_pattern"] = alphas;
}

/// The target modules: plain projection names when every layer has the same, full names otherwise.
Json target_names(const Adapter& adapter) {
  std::map<int64_t, std::set<Projection>> by_layer;
  for (const AdaptedModule& module : adapter.setup().modules) by_layer[module.layer].insert(module.projection);
  const std::set<Projection>& first = by_layer.begin()->second;
  const bool uniform =
      std::all_of(by_layer.begin(), by_layer.end(), [&](const auto& item) { return item.second == first; });
  Json names = Json::array();
  if (uniform) {
    for (const Projection projection : first) names.push_back(projection_name(projection));
    return names;
  }
  for (const AdaptedModule& module : adapter.setup().modules) names.push_back(module_name(module.layer, module.projection));
  return names;
}

Json adapted_layers(const Adapter& adapter, bool full_names) {
  std::set<int64_t> layers;
  for (const AdaptedModule& module : adapter.setup().modules) layers.insert(module.layer);
  if (full_names) return nullptr;
  return Json(std::vector<int64_t>(layers.begin(), layers.end()));
}

/// Why a tensor is none of the adapter's. PEFT saves the embeddings that it adapts, or that were resized, with their weights.
std::string why_unexpected(std::string_view tensor) {
  for (const std::string_view layer : {"lm_head", "embed_tokens"}) {
    const size_t place = tensor.find(fmt::format(".{}.", layer));
    if (place == std::string_view::npos) continue;
    if (tensor.substr(place + layer.size() + 2) != "weight")
      return fmt::format("`{}` is not adapted by cotune, only the seven projections are", layer);
    return fmt::format("PEFT saved `{}` with the adapter; save_pretrained(…, save_embedding_layers=False) leaves it out", layer);
  }
  return "does not belong to this adapter";
}

void read_lora_spec(AdapterConfigFields& config, AdapterSpec& spec) {
  const auto any = [](double) { return true; };
  spec.r = config.whole("r", 1, 512);
  spec.alpha = config.number("lora_alpha", "a number", any);
  spec.dropout = config.number(
      "lora_dropout", "a number from 0 to below 1", [](double share) { return share >= 0 && share < 1; }, 0.0);
  spec.use_rslora = config.flag("use_rslora", false);
  spec.rank_pattern = config.wholes_by_module("rank_pattern", 1, 512);
  spec.alpha_pattern = config.numbers_by_module("alpha_pattern");
}

void read_bottleneck_spec(AdapterConfigFields& config, AdapterSpec& spec) {
  spec.bottleneck_size = config.whole("bottleneck_size", 1, 4096);
  for (const Activation candidate : {Activation::relu, Activation::gelu, Activation::silu, Activation::tanh}) {
    const AdapterConfigFields::Json* activation = config.find("activation");
    if (activation == nullptr || *activation != name_of(candidate)) continue;
    spec.activation = candidate;
    return;
  }
  config.refuse("activation", "relu, gelu, silu or tanh", config.find("activation"));
}

void read_diff_pruning_spec(AdapterConfigFields& config, AdapterSpec& spec) {
  spec.density = config.number("density", "a number above 0 and at most 1", [](double share) { return share > 0 && share <= 1; });
}

void refuse_unsupported(AdapterConfigFields& config) {
  if (config.flag("use_dora", false)) config.add("use_dora", "is not supported, only plain LoRA is");
  if (const std::string bias = config.text("bias", "none"); bias != "none") {
    config.add("bias", fmt::format("`{}` is not supported, only `none` is", bias));
  }
  if (const auto* modules = config.find("modules_to_save"); modules != nullptr && !modules->empty()) {
    config.add("modules_to_save", "is not supported: cotune trains adapters only");
  }
  if (const auto* layers = config.find("layer_replication"); layers != nullptr && !layers->empty()) {
    config.add("layer_replication", "is not supported: the adapted model would have other layers than the one that is loaded");
  }
  if (config.flag("lora_bias", false)) config.add("lora_bias", "is not supported: only the two matrices of LoRA are");
  for (const char* name : {"trainable_token_indices", "target_parameters"}) {
    if (const auto* given = config.find(name); given != nullptr && !given->empty()) {
      config.add(name, "is not supported: only whole linear modules are adapted");
    }
  }
  if (config.has("alora_invocation_tokens")) {
    config.add("alora_invocation_tokens", "is not supported: an adapter of cotune's acts on every token");
  }
  for (const char* name : {"use_bdlora", "kasa_config", "monteclora_config", "velora_config"}) {
    if (config.has(name)) config.add(name, "is not supported, only plain LoRA is");
  }
  // By their names: others (pissa, olora, corda, loftq) have PEFT change the base model's weights where the adapter is loaded.
  constexpr std::array<std::string_view, 3> leave_the_base{"gaussian", "orthogonal", "eva"};
  const auto* initial = config.find("init_lora_weights");
  if (initial != nullptr && initial->is_string() &&
      std::ranges::find(leave_the_base, initial->get<std::string>()) == leave_the_base.end()) {
    config.add(
        "init_lora_weights",
        fmt::format("`{}` changes the base model's weights, which cotune leaves as they are; PEFT saves such an adapter as plain LoRA by "
                    "save_pretrained(…, path_initial_model_for_weight_conversion=…)",
                    initial->get<std::string>()));
  }
}

/// The method that `peft_type` names; nothing, with the mistake told, for another.
std::optional<AdapterMethod> method_of(AdapterConfigFields& config) {
  std::vector<std::string_view> types;
  const std::string type = config.text("peft_type", "");
  for (size_t i = 0; i < enum_names<AdapterMethod>.size(); ++i) {
    types.push_back(peft_type(static_cast<AdapterMethod>(i)));
    if (type == types.back()) return static_cast<AdapterMethod>(i);
  }
  config.refuse("peft_type", fmt::format("{} or {}", fmt::join(types.begin(), types.end() - 1, ", "), types.back()),
                config.find("peft_type"));
  return std::nullopt;
}

/// Where a job's settings stand in the file, for messages.
std::map<std::string, OptionPlace> places_in(const std::string& file) {
  std::map<std::string, OptionPlace> places;
  for (const char* name : {"target_modules", "exclude_modules", "layers_to_transform", "rank_pattern", "alpha_pattern"}) {
    places[fmt::format("adapter.{}", name)] = {file, 0, name};
  }
  return places;
}

}  // namespace

std::string adapter_config_bytes(const Adapter& adapter, const std::string& base_model) {
  const AdapterSpec& spec = adapter.setup().spec;
  Json config;
  config["peft_type"] = peft_type(spec.method);
  config["task_type"] = "CAUSAL_LM";
  const std::optional<HubName> name = hub_name_of(base_model);
  config["base_model_name_or_path"] = name ? name->repository + (name->file.empty() ? "" : "/" + name->file) : base_model;
  if (name) config["revision"] = name->revision;
  config["inference_mode"] = true;
  const Json targets = target_names(adapter);
  config["target_modules"] = targets;
  const bool full_names = targets.front().get<std::string>().find('.') != std::string::npos;
  config["layers_to_transform"] = adapted_layers(adapter, full_names);
  config["layers_pattern"] = full_names ? Json(nullptr) : Json("layers");
  switch (spec.method) {
    case AdapterMethod::lora: add_lora_config(config, adapter); break;
    case AdapterMethod::bottleneck:
      config["bottleneck_size"] = spec.bottleneck_size;
      config["activation"] = name_of(spec.activation);
      break;
    case AdapterMethod::diff_pruning: config["density"] = spec.density; break;
  }
  // The model's path need not be UTF-8.
  return text_of_json(config, 2) + "\n";
}

void write_adapter_model(const Adapter& adapter, const TakeBytes& take) {
  Writer writer;
  for (const Parameter& parameter : adapter.parameters()) {
    const at::Tensor value = parameter.transposed_in_file ? parameter.value.t() : parameter.value;
    writer.add(parameter.name, value);
  }
  for (const Adapter::NamedTensor& item : adapter.structure()) writer.add(item.name, item.tensor);
  writer.write(take);
}

void write_optimizer_state(const Adapter& adapter, const TakeBytes& take) {
  Writer writer;
  for (const Parameter& parameter : adapter.parameters()) {
    if (parameter.first_moment.defined()) writer.add(parameter.name + ".first_moment", parameter.first_moment);
    if (parameter.second_moment.defined()) writer.add(parameter.name + ".second_moment", parameter.second_moment);
  }
  writer.write(take);
}

void refuse_pickled(const std::filesystem::path& folder) {
  if (std::filesystem::exists(folder / adapter_model_file) || !std::filesystem::exists(folder / pickled_model_file)) return;
  throw_user_error(
      "{}: holds {} but no {}: pickled Python is not read. PEFT makes the one of the other: "
      "`PeftModel.from_pretrained(MODEL, '{}').save_pretrained('{}', safe_serialization=True)`, MODEL being the loaded base model",
      folder.string(), pickled_model_file, adapter_model_file, folder.string(), folder.string());
}

void load_adapter(Adapter& adapter, const std::filesystem::path& folder) {
  refuse_pickled(folder);
  const MemoryScope scope(MemoryKind::adapters);
  const SafetensorsFile file(folder / adapter_model_file);
  const std::string path = file.path().string();
  if (selects_entries(adapter.method())) {
    // A checkpoint from before the end of the selection holds entries of its first passes, and no values.
    std::vector<Adapter::NamedTensor> structure;
    bool complete = false;
    for (const auto& [name, view] : file.tensors()) {
      complete = complete || name.ends_with(".values");
      if (!name.ends_with(".values")) structure.push_back({name, to_tensor(view)});
    }
    try {
      if (!file.tensors().empty()) adapter.restore_structure(structure, complete);
    } catch (const UserError& error) {
      throw_user_error("{}: {}", path, error.what());
    }
  }
  size_t known = 0;
  for (Parameter& parameter : adapter.parameters()) {
    assign(parameter.value, file.at(parameter.name), parameter.transposed_in_file, path + ": " + parameter.name);
    ++known;
  }
  known += adapter.structure().size();
  if (known != file.tensors().size()) {
    std::set<std::string> expected;
    for (const Parameter& parameter : adapter.parameters()) expected.insert(parameter.name);
    for (const Adapter::NamedTensor& item : adapter.structure()) expected.insert(item.name);
    for (const auto& [name, view] : file.tensors()) {
      if (!expected.contains(name)) throw_user_error("{}: {}: {}", path, name, why_unexpected(name));
    }
  }
  adapter.refresh();
}

void load_optimizer_state(Adapter& adapter, const std::filesystem::path& path) {
  const SafetensorsFile file(path);
  for (Parameter& parameter : adapter.parameters()) {
    const auto load = [&](at::Tensor& moment, const char* suffix) {
      if (moment.defined()) {
        assign(moment, file.at(parameter.name + suffix), false, path.string() + ": " + parameter.name + suffix);
      }
    };
    load(parameter.first_moment, ".first_moment");
    load(parameter.second_moment, ".second_moment");
  }
}

AdapterSetup read_adapter_setup(const std::filesystem::path& folder, const ModelConfig& model) {
  const std::string file = (folder / adapter_config_file).string();
  const Json document = json_of_file(read_file(file), file);
  if (!document.is_object()) throw_user_error("{}: is not an adapter configuration: must be a JSON object", file);
  Diagnostics mistakes;
  AdapterConfigFields config(document, file, mistakes);
  JobSpec job;
  job.places = places_in(file);
  AdapterSpec& spec = job.adapter;
  if (const std::optional<AdapterMethod> method = method_of(config)) {
    spec.method = *method;
    spec.target_modules = config.names("target_modules");
    spec.exclude_modules = config.names("exclude_modules", std::vector<std::string>{});
    spec.layers_to_transform = config.layers("layers_to_transform");
    switch (spec.method) {
      case AdapterMethod::lora:
        refuse_unsupported(config);
        read_lora_spec(config, spec);
        break;
      case AdapterMethod::bottleneck: read_bottleneck_spec(config, spec); break;
      case AdapterMethod::diff_pruning: read_diff_pruning_spec(config, spec); break;
    }
  }
  mistakes.throw_if_any();
  AdapterSetup setup;
  setup.spec = spec;
  setup.modules = resolve_target_modules(job, model.layer_count, Unmatched::ignored);
  return setup;
}

}  // namespace cotune
