#include "schedule/memory/resident_memory.h"

#include <algorithm>
#include <map>

#include "model/config/tensor_shard.h"
#include "schedule/adapter_shape.h"
#include "schedule/memory/memory_shapes.h"
#include "schedule/memory/replica_memory.h"

namespace cotune {
namespace {

/// What stays of an adapter's factor [rank, columns] beside its master: ATen's copy in the compute dtype. Packed forms
/// come and go with the calls that read them.
int64_t factor_bytes(int64_t rank, int64_t columns, const MemoryFacts& facts) {
  return factor_is_packed(columns, facts) ? 0 : rank * columns * facts.element_size;
}

/// Of a sparse delta's entries: row indices and column offsets.
int64_t place_bytes(const ModelConfig& config, const AdapterShape& adapter) {
  if (adapter.method != AdapterMethod::diff_pruning) return 0;
  return adapter.entries * 4 + (projection_size(config, adapter.projection).out + 1) * 8;
}

/// Of one adapter's parameters, or of a shard of it where config is that of a part of the model.
void add_resident(const ModelConfig& config, const AdapterShape& adapter, int64_t moment_count, int64_t copies,
                  const MemoryFacts& facts, MemoryEstimate& estimate) {
  const int64_t a = accumulation_size(facts);
  const ProjectionSize size = projection_size(config, adapter.projection);
  const int64_t parameters = copies * parameter_count(config, adapter);
  estimate.adapters += parameters * a;
  estimate.gradients += parameters * a;
  estimate.optimizer += parameters * a * moment_count;
  int64_t forms = 0;
  switch (adapter.method) {
    case AdapterMethod::lora:
      forms = factor_bytes(adapter.width, size.in, facts) + factor_bytes(adapter.width, size.out, facts);
      break;
    case AdapterMethod::bottleneck:
      forms = 2 * factor_bytes(adapter.width, size.out, facts);
      break;
    case AdapterMethod::diff_pruning:
      forms = place_bytes(config, adapter);
      if (facts.gpu_kernels) forms += adapter.entries * 8 + (size.in + 1) * 8;  // the entries by row too
      break;
  }
  estimate.adapters += copies * forms;
}

}  // namespace

int64_t shrink_form_bytes(int64_t rank, int64_t width, const MemoryFacts& facts) {
  return panel_bytes(width, rank, facts.element_size, 0);
}

int64_t expand_form_bytes(int64_t rank, int64_t width, const MemoryFacts& facts) {
  return panel_bytes(rank, width, facts.element_size, facts.parts);
}

MemoryEstimate resident_bytes(const ModelConfig& config, const JobFootprint& job, const MemoryFacts& facts) {
  if (!facts.replicas.empty()) return resident_bytes_of_replicas(config, job, facts);
  const int64_t a = accumulation_size(facts), tensor = facts.tensor_parallel, parts = parts_here(facts);
  MemoryEstimate estimate;
  std::map<int64_t, int64_t> dense_by_layer;
  int64_t widest = 0;
  const auto is_stepped_here = [&](int64_t layer) {  // of processes, by the first one, which alone has whole adapters
    if (facts.process_stages.empty()) return true;
    const StageShape& first = facts.process_stages.front();
    return first.first_layer <= layer && layer < first.last_layer;
  };
  for (const AdapterShape& adapter : job.adapters) {
    add_resident(config, adapter, job.moment_count, 1, facts, estimate);
    if (tensor > 1 && is_stepped_here(adapter.layer)) {  // and the shards that the ranks step
      AdapterShape shard = adapter;
      shard.entries = divide_up(adapter.entries * ranks_with_same_outputs(config, adapter.projection, tensor), tensor);
      add_resident(sharded_config(config, tensor), shard, job.moment_count, parts, facts, estimate);
    }
    if (adapter.method != AdapterMethod::diff_pruning) continue;
    const ProjectionSize size = projection_size(config, adapter.projection);
    dense_by_layer[adapter.layer] += size.in * size.out * a;
    widest = std::max(widest, size.in * size.out * a);
  }
  int64_t densest = 0, dense = 0;
  for (const auto& [layer, bytes] : dense_by_layer) {
    densest = std::max(densest, bytes);
    dense += bytes;
  }
  const int64_t selected = std::max(densest, std::min(dense, facts.selection_bytes));
  estimate.gradients += selected;
  if (tensor > 1) estimate.gradients += divide_up(selected * ranks_with_same_outputs(config, Projection::k, tensor) * parts, tensor);
  if (parts < tensor) estimate.gradients += widest;  // of one weight, as its ranks sum it
  return estimate;
}

int64_t file_bytes(const ModelConfig& config, const JobFootprint& job, const MemoryFacts& facts) {
  int64_t places = 0, largest = 0;
  for (const AdapterShape& adapter : job.adapters) {
    places += place_bytes(config, adapter);
    largest = std::max(largest, parameter_count(config, {adapter}) * accumulation_size(facts));
  }
  return largest + places;
}

}  // namespace cotune
