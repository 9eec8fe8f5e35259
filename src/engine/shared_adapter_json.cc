#include "engine/shared_adapter_json.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <string>
#include <utility>

#include "engine/binary_json.h"

namespace cotune {
namespace {

using Json = nlohmann::json;

}  // namespace

Json setup_to_json(const AdapterSetup& setup) {
  Json modules = Json::array();
  for (const AdaptedModule& module : setup.modules) {
    modules.push_back({module.layer, static_cast<int>(module.projection), module.r, module.alpha});
  }
  return {{"method", static_cast<int>(setup.spec.method)},
          {"dropout", setup.spec.dropout},
          {"use_rslora", setup.spec.use_rslora},
          {"lora_plus_ratio", setup.spec.lora_plus_ratio},
          {"activation", static_cast<int>(setup.spec.activation)},
          {"density", setup.spec.density},
          {"modules", std::move(modules)},
          {"seed", setup.seed},
          {"optimizer", static_cast<int>(setup.optimizer)},
          {"momentum", setup.momentum},
          {"factor_form", static_cast<int>(setup.factor_form)}};
}

AdapterSetup setup_from_json(const Json& json) {
  AdapterSetup setup;
  setup.spec.method = static_cast<AdapterMethod>(json.at("method").get<int>());
  setup.spec.dropout = json.at("dropout").get<double>();
  setup.spec.use_rslora = json.at("use_rslora").get<bool>();
  setup.spec.lora_plus_ratio = json.at("lora_plus_ratio").get<double>();
  setup.spec.activation = static_cast<Activation>(json.at("activation").get<int>());
  setup.spec.density = json.at("density").get<double>();
  for (const Json& module : json.at("modules")) {
    setup.modules.push_back({module.at(0).get<int64_t>(), static_cast<Projection>(module.at(1).get<int>()),
                             module.at(2).get<int64_t>(), module.at(3).get<double>()});
  }
  setup.seed = json.at("seed").get<uint64_t>();
  setup.optimizer = static_cast<OptimizerKind>(json.at("optimizer").get<int>());
  setup.momentum = json.at("momentum").get<double>();
  setup.factor_form = static_cast<FactorForm>(json.at("factor_form").get<int>());
  return setup;
}

Json structure_to_json(std::span<const Adapter::NamedTensor> structure) {
  Json json = Json::array();
  for (const Adapter::NamedTensor& item : structure) {
    const at::Tensor values = item.tensor.to(at::kCPU, at::kLong).contiguous();
    json.push_back({{"name", item.name},
                    {"layer", item.layer},
                    {"type", static_cast<int>(item.tensor.scalar_type())},
                    {"values", binary_json(values.const_data_ptr<int64_t>(), static_cast<size_t>(values.numel()))}});
  }
  return json;
}

std::vector<Adapter::NamedTensor> structure_from_json(const Json& json) {
  std::vector<Adapter::NamedTensor> structure;
  for (const Json& item : json) {
    const auto values = values_of_binary<int64_t>(item.at("values"));
    at::Tensor tensor = at::empty({static_cast<int64_t>(values.size())}, at::kLong);
    std::copy(values.begin(), values.end(), tensor.mutable_data_ptr<int64_t>());
    structure.push_back({item.at("name").get<std::string>(), tensor.to(static_cast<at::ScalarType>(item.at("type").get<int>())),
                         item.at("layer").get<int64_t>()});
  }
  return structure;
}

}  // namespace cotune
