#include "schedule/memory/round_workspace.h"

#include <algorithm>
#include <map>
#include <utility>

#include "schedule/memory/memory_shapes.h"
#include "schedule/memory/resident_memory.h"
#include "schedule/memory/worst_case.h"

namespace cotune {
namespace {

int64_t form_bytes_at_most(int64_t rank, int64_t columns, const MemoryFacts& facts) {
  if (!factor_is_packed(columns, facts)) return 0;
  return std::max(shrink_form_bytes(rank, columns, facts), expand_form_bytes(rank, columns, facts));
}

/// What a method's calls take beside what the operators take anyhow, per token: `e` of the compute dtype, `a` of accumulations.
int64_t method_workspace_per_token(const ModelConfig& config, AdapterMethod method, int64_t e, int64_t a) {
  switch (method) {
    case AdapterMethod::lora:  // masked inputs are counted for everyone
    case AdapterMethod::diff_pruning: return 0;
    case AdapterMethod::bottleneck: return config.hidden_size * (e + 4 * a);
  }
  return 0;
}

/// What GPU kernels take beside tensors of the operator list: sums of the chunks of a gradient's rows (cuda/outer_products.cu:
/// 1,024 rows, ranks by 16, three projections of a call), and panels of transposed rows for sparse deltas
/// (ops/sparse_delta_gpu.cc).
int64_t gpu_kernel_bytes(const ModelConfig& config, std::span<const JobFootprint> jobs, int64_t tokens, const MemoryFacts& facts) {
  constexpr int64_t chunk_rows = 1024, tile_ranks = 16, projections = 3, panel_bytes = int64_t{64} << 20, panel_rows = 512;
  constexpr int64_t most_chunk_bytes = int64_t{64} << 20;  // or those of one tile of ranks
  const int64_t chunks = tokens / chunk_rows + static_cast<int64_t>(jobs.size()), element = accumulation_size(facts);
  int64_t chunk_sums = 0, panel = 0;
  const auto take_chunk_sums = [&](int64_t ranks, int64_t width) {
    const int64_t of_tile = chunks * tile_ranks * width * element;
    chunk_sums =
        std::max(chunk_sums, std::min(projections * round_up(ranks, tile_ranks) / tile_ranks * of_tile, std::max(of_tile, most_chunk_bytes)));
  };
  for (const JobFootprint& job : jobs) {
    for (const AdapterShape& adapter : job.adapters) {
      const ProjectionSize size = projection_size(config, adapter.projection);
      if (adapter.method == AdapterMethod::diff_pruning) {
        panel = std::max({panel, panel_bytes, panel_rows * (size.in + size.out) * facts.element_size});
        take_chunk_sums(size.in, size.out);  // of dense gradients, while it chooses its entries
      } else {
        take_chunk_sums(adapter.width, std::max(size.in, size.out));
      }
    }
  }
  return chunk_sums + panel;
}

/// Of products whose sizes keep them from our kernels, where ATen multiplies bf16 in f32 (ops/aten_products.h): both sides of the widest, and a
/// block of its weight.
int64_t widened_bytes(const ModelConfig& config, int64_t tokens, const MemoryFacts& facts) {
  if (facts.product_block_bytes == 0) return 0;
  const int64_t hidden = config.hidden_size, query = config.query_size(), intermediate = config.intermediate_size;
  int64_t widest = 0;
  bool any = !fits_panels(hidden, config.vocabulary_size);
  for (const auto& [in, out] :
       {std::pair(hidden, query + 2 * config.key_value_size()), {query, hidden}, {hidden, 2 * intermediate}, {intermediate, hidden}}) {
    if (fits_panels(in, out)) continue;
    any = true;
    widest = std::max(widest, in + out);
  }
  return any ? accumulation_size(facts) * tokens * widest + facts.product_block_bytes : 0;
}

/// Of one rank's threads, while gradients of attention are computed: the last part of a row has all of it before it.
int64_t attention_bytes(const ModelConfig& config, std::span<const JobFootprint> jobs, const PackingPolicy& policy, const MemoryFacts& facts) {
  if (facts.attention_threads == 0) return 0;
  const int64_t ranks_here = facts.process_stages.empty() ? facts.ranks : 1;
  const int64_t threads = std::max<int64_t>(1, facts.attention_threads / ranks_here);
  return threads * attention_scratch_bytes(config, longest_part_end(jobs, policy), Direction::backward, facts);
}

}  // namespace

/// The packed forms that one grouped call makes of these jobs' factors, at most: those of one operator.
int64_t largest_forms(const ModelConfig& config, std::span<const JobFootprint> jobs, const MemoryFacts& facts) {
  std::map<std::pair<int64_t, Projection>, int64_t> bytes;  // by layer and the first projection of the operator
  const auto operator_of = [](Projection projection) {
    if (projection == Projection::k || projection == Projection::v) return Projection::q;
    return projection == Projection::up ? Projection::gate : projection;
  };
  int64_t largest = 0;
  for (const JobFootprint& job : jobs) {
    for (const AdapterShape& adapter : job.adapters) {
      if (adapter.width == 0) continue;  // no factors
      const ProjectionSize size = projection_size(config, adapter.projection);
      const int64_t forms = std::max(form_bytes_at_most(adapter.width, size.in, facts),
                                     form_bytes_at_most(adapter.width, size.out, facts));
      largest = std::max(largest, bytes[{adapter.layer, operator_of(adapter.projection)}] += forms);
    }
  }
  return largest;
}

int64_t workspace_bytes(const ModelConfig& config, std::span<const JobFootprint> jobs, int64_t tokens, const PackingPolicy& policy,
                        const MemoryFacts& facts) {
  const int64_t e = facts.element_size, a = accumulation_size(facts);
  const int64_t hidden = config.hidden_size, intermediate = config.intermediate_size;
  const int64_t mlp = 3 * hidden + 4 * intermediate;
  const int64_t attention = 3 * hidden + 2 * config.query_size() + 2 * config.key_value_size();
  int64_t per_token = e * std::max(3 * hidden, intermediate);
  per_token += 2 * hidden * (a - e);  // the residual stream, before and after a product
  int64_t of_methods = 0;
  for (const JobFootprint& job : jobs) {
    for (const AdapterShape& adapter : job.adapters) {
      of_methods = std::max(of_methods, method_workspace_per_token(config, adapter.method, e, a));
    }
  }
  per_token += of_methods;
  if (facts.packed) {
    const int64_t of_layer = std::max(tokens * e * mlp, tokens * e * attention + attention_bytes(config, jobs, policy, facts));
    return of_layer + tokens * per_token + widened_bytes(config, tokens, facts);
  }
  per_token += e * std::max(mlp, attention);
  const int64_t own = facts.gpu_kernels ? gpu_kernel_bytes(config, jobs, tokens, facts) : facts.product_block_bytes;
  if (config.head_dim % 8 == 0 && config.head_dim <= facts.widest_flash_head) return 3 * tokens * per_token + own;
  const int64_t longest = longest_row(jobs);
  const int64_t queries = std::min({tokens, round_up(longest, row_grid), facts.attention_queries});
  return 3 * tokens * per_token + own + 6 * a * (config.head_count * queries + config.key_value_size()) * longest;
}

}  // namespace cotune
