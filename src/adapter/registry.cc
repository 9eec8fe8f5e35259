#include "adapter/adapter.h"
#include "adapter/bottleneck.h"
#include "adapter/diff_pruning.h"
#include "adapter/lora.h"
#include "base/error.h"
#include "ops/memory.h"

namespace cotune {

const Method& method_of(AdapterMethod method) {
  switch (method) {
    case AdapterMethod::lora: return lora_method();
    case AdapterMethod::bottleneck: return bottleneck_method();
    case AdapterMethod::diff_pruning: return diff_pruning_method();
  }
  COTUNE_CHECK(false, "unregistered adapter method");
}

std::unique_ptr<Adapter> make_adapter(const ModelConfig& config, AdapterSetup setup) {
  const MemoryScope scope(MemoryKind::adapters);
  switch (setup.spec.method) {
    case AdapterMethod::lora: return make_lora(config, std::move(setup));
    case AdapterMethod::bottleneck: return make_bottleneck(config, std::move(setup));
    case AdapterMethod::diff_pruning: return make_diff_pruning(config, std::move(setup));
  }
  COTUNE_CHECK(false, "unregistered adapter method");
}

}  // namespace cotune
