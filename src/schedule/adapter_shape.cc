#include "schedule/adapter_shape.h"

#include "jobs/adapter_methods.h"
#include "model/config/tensor_shard.h"

namespace cotune {

AdapterShape adapter_shape(int32_t job, const AdapterSpec& adapter, const AdaptedModule& module,
                           const ModelConfig& config) {
  AdapterShape shape{job, adapter.method, module.layer, module.projection, module.r, 0, adapter.dropout > 0};
  if (selects_entries(adapter.method)) {
    const ProjectionSize size = projection_size(config, module.projection);
    shape.entries = kept_entries(adapter.density, size.in * size.out);
  }
  return shape;
}

std::vector<AdapterShape> adapter_shapes(int32_t job, const AdapterSpec& adapter,
                                         const std::vector<AdaptedModule>& modules,
                                         const ModelConfig& config) {
  std::vector<AdapterShape> shapes;
  for (const AdaptedModule& module : modules) shapes.push_back(adapter_shape(job, adapter, module, config));
  return shapes;
}

int64_t parameter_count(const ModelConfig& config, const AdapterShape& adapter) {
  const ProjectionSize size = projection_size(config, adapter.projection);
  switch (adapter.method) {
    case AdapterMethod::lora:
      return adapter.width * (size.in + size.out);
    case AdapterMethod::bottleneck:
      return 2 * adapter.width * size.out + adapter.width + size.out;
    case AdapterMethod::diff_pruning:
      return adapter.entries;
  }
  return 0;
}

int64_t parameter_count(const ModelConfig& config, std::span<const AdapterShape> adapters) {
  int64_t count = 0;
  for (const AdapterShape& adapter : adapters) count += parameter_count(config, adapter);
  return count;
}

}  // namespace cotune
