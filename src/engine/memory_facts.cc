#include "engine/memory_facts.h"

#include <ATen/Parallel.h>

#include "adapter/diff_pruning.h"
#include "kernels/attention.h"
#include "ops/aten_products.h"
#include "ops/attention.h"
#include "ops/backend.h"
#include "ops/flash_attention.h"

namespace cotune {
namespace {

// Chunks of the head: on a CPU they stay near the caches; on a GPU a product should have thousands of rows to fill it.
constexpr int64_t cpu_head_workspace = int64_t{48} << 20;
constexpr int64_t gpu_head_workspace = int64_t{1} << 30;

template <kernels::DType dtype>
int64_t attention_scratch(const ModelConfig& config, int64_t row_tokens, Direction direction) {
  const kernels::AttentionShape shape{config.head_count, config.kv_head_count, config.head_dim};
  return direction == Direction::backward ? kernels::attention_backward_scratch_bytes(dtype, shape, row_tokens)
                                          : kernels::attention_forward_scratch_bytes(dtype, shape, row_tokens);
}

AttentionScratch attention_scratch_in(at::ScalarType compute) {
  return compute == at::kBFloat16 ? attention_scratch<kernels::DType::bf16> : attention_scratch<kernels::DType::f32>;
}

}  // namespace

MemoryFacts memory_facts(at::ScalarType compute, at::Device device, int weight_parts) {
  const kernels::Isa isa = kernel_isa(compute, device);
  const bool packed = isa != kernels::Isa::none;
  const bool gpu_kernels = gpu_kernels_for(compute, device) != nullptr;
  return {.element_size = static_cast<int64_t>(c10::elementSize(compute)),
          .packed = packed,
          .gpu_kernels = gpu_kernels,
          .widest_flash_head = gpu_kernels && compute == at::kBFloat16 ? widest_flash_head : 0,
          .parts = isa == kernels::Isa::amx_f32 ? weight_parts : 0,
          .head_workspace_bytes = gpu_kernels ? gpu_head_workspace : cpu_head_workspace,
          .product_block_bytes = multiplies_in_f32(compute, device) ? widened_block_bytes : 0,
          .attention_queries = dense_attention_queries,
          .attention_threads = packed ? at::get_num_threads() : 0,
          .attention_scratch = packed ? attention_scratch_in(compute) : nullptr,
          .selection_bytes = selection_bytes};
}

}  // namespace cotune
