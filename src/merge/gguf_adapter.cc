#include "merge/gguf_adapter.h"

#include <ATen/ATen.h>

#include <cmath>
#include <map>

#include "base/error.h"
#include "formats/gguf_writer.h"
#include "jobs/enum_names.h"
#include "model/config/families.h"
#include "model/weights/gguf_weights.h"

namespace cotune {
namespace {

std::string architecture_of(const ModelConfig& config) {
  const std::string_view own = model_family(config.family).gguf_architecture;
  return std::string(own.empty() ? "llama" : own);  // llama.cpp has no architecture for Mistral's models: they are Llama's
}

/// llama.cpp takes an alpha of zero for none, and scales by 1.
double file_alpha(const AdapterSetup& setup) {
  return static_cast<float>(setup.spec.alpha) != 0 ? setup.spec.alpha : static_cast<double>(setup.modules.front().r);
}

}  // namespace

void write_gguf_adapter(const std::filesystem::path& path, const Adapter& adapter, GgufType type, const std::string& name) {
  if (adapter.method() != AdapterMethod::lora) {
    throw_user_error("an adapter of method {} cannot be written as GGUF: llama.cpp applies LoRA only", name_of(adapter.method()));
  }
  const AdapterSpec& spec = adapter.setup().spec;
  const ModelConfig& config = adapter.model_config();
  std::map<std::string, ModelTensor> by_name;
  for (const ModelTensor& tensor : model_tensors(config)) by_name[tensor.name] = tensor;

  std::vector<at::Tensor> values;
  std::vector<GgufTensorPlan> tensors;
  const auto add = [&](const std::string& tensor_name, const at::Tensor& value) {
    const at::Tensor stored = value.to(type == GgufType::F16 ? at::kHalf : at::kFloat).contiguous();
    if (!at::isfinite(stored).all().item<bool>()) {
      throw_user_error("{}: holds values that {} cannot hold, or that are not finite", tensor_name, gguf_type_name(type));
    }
    values.push_back(stored);
    tensors.push_back({tensor_name, type, stored.sizes().vec()});
  };
  const double alpha = file_alpha(adapter.setup());
  size_t site = 0;
  for (const AdaptedModule& module : adapter.setup().modules) {
    const ModelTensor& weight = by_name.at(module_name(module.layer, module.projection) + ".weight");
    const auto r = static_cast<double>(module.r);
    const double missing = module.alpha / (spec.use_rslora ? std::sqrt(r) : r) / (alpha / r);
    const at::Tensor a = adapter.parameters()[2 * site].value.to(at::kCPU);
    at::Tensor b = adapter.parameters()[2 * site + 1].value.to(at::kCPU).t();
    if (missing != 1) b = b.to(at::kDouble) * missing;
    add(weight.gguf_name + ".lora_a", a);
    add(weight.gguf_name + ".lora_b", in_gguf_rows(b.contiguous(), weight.gguf_rows, config.head_dim));
    ++site;
  }
  const std::vector<std::string> pairs = {gguf_pair_bytes({"general.architecture", architecture_of(config)}),
                                          gguf_pair_bytes({"general.type", "adapter"}),
                                          gguf_pair_bytes({"general.name", name}),
                                          gguf_pair_bytes({"general.file_type", gguf_file_type(type)}),
                                          gguf_pair_bytes({"adapter.type", "lora"}),
                                          gguf_pair_bytes({"adapter.lora.alpha", static_cast<float>(alpha)})};
  GgufWriter writer(path, pairs, std::move(tensors));
  for (const at::Tensor& value : values) writer.append({static_cast<const std::byte*>(value.const_data_ptr()), value.nbytes()});
  writer.commit();
}

}  // namespace cotune
