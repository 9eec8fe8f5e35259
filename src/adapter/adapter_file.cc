#include "adapter/adapter_file.h"

#include <ATen/ATen.h>

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "formats/safetensors.h"
#include "jobs/adapter_methods.h"
#include "jobs/enum_names.h"
#include "jobs/hub_cache.h"
#include "jobs/target_modules.h"
#include "model/weights/data_type_conversion.h"
#include "ops/memory.h"

namespace cotune {
namespace {

using Json = nlohmann::ordered_json;

const char* peft_type(AdapterMethod method) {
  switch (method) {
    case AdapterMethod::lora: return "LORA";
    case AdapterMethod::bottleneck: return "COTUNE_BOTTLENECK";
    case AdapterMethod::diff_pruning: return "COTUNE_DIFF_PRUNING";
  }
  return "";
}

const char* activation_name(Activation activation) {
  static constexpr const char* names[] = {"relu", "gelu", "silu", "tanh"};
  return names[static_cast<size_t>(activation)];
}

/// Tensors on their way to a file; keeps what the views point to.
class Writer {
 public:
  void add(const std::string& name, const at::Tensor& tensor) {
    const at::Tensor plain = tensor.cpu().contiguous();
    DataType dtype = DataType::f32;
    if (plain.scalar_type() == at::kDouble) dtype = DataType::f64;
    if (plain.scalar_type() == at::kInt) dtype = DataType::i32;
    if (plain.scalar_type() == at::kLong) dtype = DataType::i64;
    kept_.push_back(plain);
    tensors_.push_back({name,
                        {dtype,
                         plain.sizes().vec(),
                         {static_cast<const std::byte*>(plain.const_data_ptr()), plain.nbytes()}}});
  }
  std::string bytes() const { return safetensors_bytes(tensors_, {{"format", "pt"}}); }

 private:
  std::vector<at::Tensor> kept_;
  std::vector<NamedTensor> tensors_;
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

template <typename T>
T field_or(const Json& config, const char* name, T fallback) {
  const auto found = config.find(name);
  return found == config.end() || found->is_null() ? fallback : found->get<T>();
}

template <typename T>
ModulePattern<T> pattern_of(const Json& config, const char* name) {
  ModulePattern<T> pattern;
  const auto found = config.find(name);
  if (found == config.end() || found->is_null()) return pattern;
  for (const auto& [key, value] : found->items()) pattern.emplace_back(key, value.template get<T>());
  return pattern;
}

void check_rank(int64_t rank, const std::string& place) {
  if (rank < 1 || rank > 512) throw_user_error("{}: must be between 1 and 512, got {}", place, rank);
}

void check_finite(double value, const std::string& place) {
  if (!std::isfinite(value)) throw_user_error("{}: must be a finite number", place);
}

void read_lora_spec(const Json& config, AdapterSpec& spec, const std::string& file) {
  spec.r = config.at("r").get<int64_t>();
  spec.alpha = config.at("lora_alpha").get<double>();
  spec.dropout = field_or(config, "lora_dropout", 0.0);
  spec.use_rslora = field_or(config, "use_rslora", false);
  spec.rank_pattern = pattern_of<int64_t>(config, "rank_pattern");
  spec.alpha_pattern = pattern_of<double>(config, "alpha_pattern");
  check_rank(spec.r, file + ": r");
  check_finite(spec.alpha, file + ": lora_alpha");
  if (!(spec.dropout >= 0 && spec.dropout < 1)) {
    throw_user_error("{}: lora_dropout: must be in [0, 1), got {}", file, spec.dropout);
  }
  for (const auto& [key, rank] : spec.rank_pattern) check_rank(rank, file + ": rank_pattern: " + key);
  for (const auto& [key, alpha] : spec.alpha_pattern) check_finite(alpha, file + ": alpha_pattern: " + key);
}

void read_bottleneck_spec(const Json& config, AdapterSpec& spec, const std::string& file) {
  spec.bottleneck_size = config.at("bottleneck_size").get<int64_t>();
  if (spec.bottleneck_size < 1 || spec.bottleneck_size > 4096) {
    throw_user_error("{}: bottleneck_size: must be between 1 and 4096, got {}", file, spec.bottleneck_size);
  }
  const auto activation = config.at("activation").get<std::string>();
  for (const Activation candidate : {Activation::relu, Activation::gelu, Activation::silu, Activation::tanh}) {
    if (activation != activation_name(candidate)) continue;
    spec.activation = candidate;
    return;
  }
  throw_user_error("{}: activation: must be relu, gelu, silu or tanh, got `{}`", file, activation);
}

void read_diff_pruning_spec(const Json& config, AdapterSpec& spec, const std::string& file) {
  spec.density = config.at("density").get<double>();
  if (!(spec.density > 0 && spec.density <= 1)) {
    throw_user_error("{}: density: must be above 0 and at most 1, got {}", file, spec.density);
  }
}

void refuse_unsupported(const Json& config, const std::string& file) {
  if (field_or(config, "use_dora", false)) throw_user_error("{}: use_dora: is not supported, only plain LoRA is", file);
  const auto bias = field_or<std::string>(config, "bias", "none");
  if (bias != "none") throw_user_error("{}: bias: `{}` is not supported, only `none` is", file, bias);
  const auto modules = config.find("modules_to_save");
  if (modules != config.end() && !modules->is_null() && !modules->empty()) {
    throw_user_error("{}: modules_to_save: is not supported: cotune trains adapters only", file);
  }
  const auto tokens = config.find("alora_invocation_tokens");
  if (tokens != config.end() && !tokens->is_null()) {
    throw_user_error("{}: alora_invocation_tokens: is not supported: an adapter of cotune's acts on every token", file);
  }
  // By their names: others (pissa, olora, corda, loftq) have PEFT change the base model's weights where the adapter is loaded.
  constexpr std::array<std::string_view, 3> leave_the_base{"gaussian", "orthogonal", "eva"};
  const auto initial = config.find("init_lora_weights");
  if (initial != config.end() && initial->is_string() &&
      std::ranges::find(leave_the_base, initial->get<std::string>()) == leave_the_base.end()) {
    throw_user_error("{}: init_lora_weights: `{}` changes the base model's weights, which cotune leaves as they are; PEFT saves such an adapter "
                     "as plain LoRA by save_pretrained(…, path_initial_model_for_weight_conversion=…)", file, initial->get<std::string>());
  }
}

/// One name, a pattern, or a list of names.
std::vector<std::string> names_in(const Json& value) {
  return value.is_string() ? std::vector<std::string>{value.get<std::string>()} : value.get<std::vector<std::string>>();
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
      config["activation"] = activation_name(spec.activation);
      break;
    case AdapterMethod::diff_pruning: config["density"] = spec.density; break;
  }
  // The model's path need not be UTF-8.
  return config.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

std::string adapter_model_bytes(const Adapter& adapter) {
  Writer writer;
  for (const Parameter& parameter : adapter.parameters()) {
    const at::Tensor value = parameter.transposed_in_file ? parameter.value.t() : parameter.value;
    writer.add(parameter.name, value);
  }
  for (const Adapter::NamedTensor& item : adapter.structure()) writer.add(item.name, item.tensor);
  return writer.bytes();
}

std::string optimizer_state_bytes(const Adapter& adapter) {
  Writer writer;
  for (const Parameter& parameter : adapter.parameters()) {
    if (parameter.first_moment.defined()) writer.add(parameter.name + ".first_moment", parameter.first_moment);
    if (parameter.second_moment.defined()) writer.add(parameter.name + ".second_moment", parameter.second_moment);
  }
  return writer.bytes();
}

void load_adapter(Adapter& adapter, const std::filesystem::path& folder) {
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
      if (!expected.contains(name)) throw_user_error("{}: {}: does not belong to this adapter", path, name);
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
  const std::filesystem::path path = folder / adapter_config_file;
  const std::string name = path.string();
  try {
    const Json config = Json::parse(read_file(path));
    JobSpec job;
    job.name = folder.filename().string();
    job.file = name;
    AdapterSpec& spec = job.adapter;
    const auto type = config.at("peft_type").get<std::string>();
    bool known = false;
    std::vector<std::string_view> types;
    for (size_t i = 0; i < enum_names<AdapterMethod>.size(); ++i) {
      types.push_back(peft_type(static_cast<AdapterMethod>(i)));
      if (type != types.back()) continue;
      spec.method = static_cast<AdapterMethod>(i);
      known = true;
    }
    if (!known) {
      throw_user_error("{}: peft_type: `{}` is not supported; {} and {} are", name, type,
                       fmt::join(types.begin(), types.end() - 1, ", "), types.back());
    }
    spec.target_modules = names_in(config.at("target_modules"));
    if (const auto excluded = config.find("exclude_modules"); excluded != config.end() && !excluded->is_null()) {
      spec.exclude_modules = names_in(*excluded);
    }
    const auto layers = config.find("layers_to_transform");
    if (layers != config.end() && !layers->is_null()) {
      spec.layers_to_transform = layers->is_number() ? std::vector<int64_t>{layers->get<int64_t>()}
                                                     : layers->get<std::vector<int64_t>>();
    }
    switch (spec.method) {
      case AdapterMethod::lora:
        refuse_unsupported(config, name);
        read_lora_spec(config, spec, name);
        break;
      case AdapterMethod::bottleneck: read_bottleneck_spec(config, spec, name); break;
      case AdapterMethod::diff_pruning: read_diff_pruning_spec(config, spec, name); break;
    }
    AdapterSetup setup;
    setup.spec = spec;
    setup.modules = resolve_target_modules(job, model.layer_count);
    return setup;
  } catch (const Json::exception& error) {
    throw_user_error("{}: is not an adapter configuration: {}", name, error.what());
  }
}

}  // namespace cotune
