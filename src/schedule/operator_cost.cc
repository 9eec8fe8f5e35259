#include "schedule/operator_cost.h"

#include <algorithm>
#include <bit>

#include "schedule/operators.h"
#include "schedule/sequence_parallel.h"

namespace cotune {
namespace {

/// The sizes of one rank's slice of a layer.
struct Sizes {
  Sizes(const ModelConfig& config, const StageShape& stage, int64_t element)
      : hidden(config.hidden_size),
        heads(config.head_count / stage.tensor_parallel),
        head_dim(config.head_dim),
        query(heads * head_dim),
        qkv(query + 2 * projection_size(config, Projection::k, stage.tensor_parallel).out),
        intermediate(config.intermediate_size / stage.tensor_parallel),
        gated(config.gated ? 2 * intermediate : intermediate),
        vocabulary(config.vocabulary_size / stage.tensor_parallel),
        element_size(element),
        accumulation_size(accumulation_bytes(element)) {}

  int64_t hidden, heads, head_dim, query, qkv, intermediate, gated, vocabulary, element_size, accumulation_size;
};

int64_t job_tokens(const MicrobatchCounts& counts, int32_t job) {
  return job < static_cast<int32_t>(counts.job_tokens.size()) ? counts.job_tokens[static_cast<size_t>(job)] : 0;
}

/// Rows that an adapter computes with: of one that adapts slices, where there are some, as many as fall on a rank.
int64_t adapter_tokens(const MicrobatchCounts& counts, const AdapterShape& adapter, const StageShape& stage) {
  const int64_t tokens = job_tokens(counts, adapter.job);
  return adapts_slices(adapter.method) ? largest_slice(tokens, stage) : tokens;
}

/// Columns of x·Fᵀ for an adapter's factor F [width, …].
int64_t padded_width(int64_t width, int64_t element_size) {
  return element_size == 8 ? width : (width + 31) / 32 * 32;
}

/// Operations per token of one of forward, input gradient and adapter gradient.
double adapter_flops_per_token(const AdapterShape& adapter, const ProjectionSize& size) {
  switch (adapter.method) {
    case AdapterMethod::lora:
      return 2.0 * static_cast<double>(adapter.width) * static_cast<double>(size.in + size.out);
    case AdapterMethod::bottleneck:
      return 4.0 * static_cast<double>(adapter.width) * static_cast<double>(size.out);
    case AdapterMethod::diff_pruning:
      return 2.0 * static_cast<double>(adapter.entries);
  }
  return 0;
}

/// The part of the adapter's backward that makes g from the incoming gradient.
double incoming_flops_per_token(const AdapterShape& adapter, const ProjectionSize& size) {
  switch (adapter.method) {
    case AdapterMethod::lora:
    case AdapterMethod::bottleneck:
      return 2.0 * static_cast<double>(adapter.width) * static_cast<double>(size.out);
    case AdapterMethod::diff_pruning:
      return 0;
  }
  return 0;
}

double adapter_bytes_per_token(const AdapterShape& adapter, const ProjectionSize& size, const Sizes& s) {
  const auto e = static_cast<double>(s.element_size);
  switch (adapter.method) {
    case AdapterMethod::lora:  // the input is read once more; what the product writes is counted with it
      return e * static_cast<double>(size.in + 2 * adapter.width);
    case AdapterMethod::bottleneck:
      return e * static_cast<double>(3 * size.out + 2 * adapter.width);
    case AdapterMethod::diff_pruning:
      return e * static_cast<double>(size.in + 2 * size.out);
  }
  return 0;
}

void add_adapters(const ModelConfig& config, const StageShape& stage, const Operator& op,
                  const MicrobatchCounts& counts, const Sizes& s, OperatorCost& cost) {
  uint32_t methods = 0;  // a bit for each
  for (const AdapterShape& adapter : op.adapters) {
    const int64_t tokens = adapter_tokens(counts, adapter, stage);
    if (tokens == 0) continue;
    const ProjectionSize size = projection_size(config, adapter.projection, stage.tensor_parallel);
    const auto n = static_cast<double>(tokens);
    cost.flops += n * adapter_flops_per_token(adapter, size);
    if (op.without_input_gradient) cost.flops += n * incoming_flops_per_token(adapter, size);
    cost.bytes_moved += n * adapter_bytes_per_token(adapter, size, s);
    methods |= 1U << static_cast<uint32_t>(adapter.method);
  }
  cost.adapter_calls += std::popcount(methods);
}

/// What an adapter keeps of a forward for its backward.
int64_t kept_bytes_per_token(const AdapterShape& adapter, const ProjectionSize& size, int64_t element_size) {
  switch (adapter.method) {
    case AdapterMethod::lora: return padded_width(adapter.width, element_size) * element_size;
    case AdapterMethod::bottleneck: return (size.out + padded_width(adapter.width, element_size)) * element_size;
    case AdapterMethod::diff_pruning: return 0;
  }
  return 0;
}

/// y [tokens, out] from x [tokens, in], with `extra` more reads and writes of [tokens, out].
OperatorCost frozen_product(double tokens, int64_t in, int64_t out, int64_t extra, const Sizes& s) {
  const auto e = static_cast<double>(s.element_size);
  const auto i = static_cast<double>(in), o = static_cast<double>(out);
  return {.flops = 2 * tokens * i * o,
          .bytes_moved = e * (i * o + tokens * (i + static_cast<double>(1 + extra) * o)),
          .frozen_calls = 1};
}

OperatorCost elementwise(double values, double flops_per_value, double passes, const Sizes& s) {
  return {.flops = flops_per_value * values, .bytes_moved = passes * values * static_cast<double>(s.element_size)};
}

/// The operator also reads or writes the residual stream `passes` times, which is in the accumulation dtype.
OperatorCost with_stream(OperatorCost cost, double values, double passes, const Sizes& s) {
  cost.bytes_moved += passes * values * static_cast<double>(s.accumulation_size - s.element_size);
  return cost;
}

OperatorCost head_cost(double labelled, bool with_gradient, const Sizes& s) {
  const auto h = static_cast<double>(s.hidden), v = static_cast<double>(s.vocabulary);
  const auto e = static_cast<double>(s.element_size);
  const double products = with_gradient ? 2 : 1;
  return {.flops = labelled * (products * 2 * h * v + (with_gradient ? 5 : 3) * v + (with_gradient ? 12 : 4) * h),
          .bytes_moved = e * (products * v * h + labelled * ((with_gradient ? 4 : 2) * v + 2 * products * h)),
          .frozen_calls = with_gradient ? 2 : 1};
}

OperatorCost base_cost(const StageShape& stage, const Operator& op, const MicrobatchCounts& counts, const Sizes& s) {
  const auto tokens = static_cast<double>(counts.tokens);
  const auto stream_values = static_cast<double>(largest_slice(counts.tokens, stage) * s.hidden);
  const auto gated_values = tokens * static_cast<double>(s.intermediate);
  const double attention_flops =
      4.0 * static_cast<double>(counts.attention_pairs) * static_cast<double>(s.heads * s.head_dim);
  const double attention_bytes =
      tokens * static_cast<double>((s.qkv + s.query) * s.element_size + s.heads * s.accumulation_size);
  switch (op.kind) {
    case OperatorKind::embedding:
      return with_stream(elementwise(tokens * static_cast<double>(s.hidden), 0, 2, s), stream_values, 1, s);
    case OperatorKind::attention_norm:
    case OperatorKind::mlp_norm:
      return with_stream(elementwise(stream_values, 4, s.accumulation_size != s.element_size ? 3 : 2, s), stream_values, 1, s);
    case OperatorKind::attention_norm_backward:
    case OperatorKind::mlp_norm_backward:
      return elementwise(stream_values, 8, 4, s);
    case OperatorKind::qkv_proj:
      return frozen_product(tokens, s.hidden, s.qkv, 0, s);
    case OperatorKind::o_proj:
      return with_stream(frozen_product(tokens, s.query, s.hidden, 1, s), stream_values, 2, s);
    case OperatorKind::gate_up_proj:
      return frozen_product(tokens, s.hidden, s.gated, 0, s);
    case OperatorKind::down_proj:
      return with_stream(frozen_product(tokens, s.intermediate, s.hidden, 1, s), stream_values, 2, s);
    case OperatorKind::qkv_proj_backward:
      return frozen_product(tokens, s.qkv, s.hidden, 0, s);
    case OperatorKind::o_proj_backward:
      return frozen_product(tokens, s.hidden, s.query, 0, s);
    case OperatorKind::gate_up_proj_backward:
      return frozen_product(tokens, s.gated, s.hidden, 0, s);
    case OperatorKind::down_proj_backward:
      return frozen_product(tokens, s.hidden, s.intermediate, 0, s);
    case OperatorKind::attention:
      return {.flops = attention_flops, .bytes_moved = attention_bytes};
    case OperatorKind::attention_backward:
      return {.flops = 2.5 * attention_flops, .bytes_moved = 2 * attention_bytes};
    case OperatorKind::swiglu:
      return elementwise(gated_values, 5, 3, s);
    case OperatorKind::swiglu_backward:
      return elementwise(gated_values, 12, 6, s);
    case OperatorKind::loss_head:
      return head_cost(static_cast<double>(counts.labelled), false, s);
    case OperatorKind::head:
      return head_cost(static_cast<double>(counts.labelled), true, s);
    case OperatorKind::down_adapter_gradient:
      return op.without_input_gradient ? elementwise(gated_values, 5, 3, s) : OperatorCost{};
    case OperatorKind::qkv_adapter_gradient:
    case OperatorKind::gate_up_adapter_gradient:
    case OperatorKind::qkv_input_gather:
    case OperatorKind::gate_up_input_gather:
      return elementwise(stream_values, 2, 2, s);  // the normalised input again
    case OperatorKind::o_adapter_gradient:
    case OperatorKind::down_error_gather:
    case OperatorKind::o_error_gather:
      return {};
  }
  return {};
}

}  // namespace

OperatorCost& OperatorCost::operator+=(const OperatorCost& other) {
  flops += other.flops;
  bytes_moved += other.bytes_moved;
  bytes_saved += other.bytes_saved;
  frozen_calls += other.frozen_calls;
  adapter_calls += other.adapter_calls;
  return *this;
}

MicrobatchCounts count_microbatch(const Microbatch& microbatch, int64_t labelled) {
  MicrobatchCounts counts{.labelled = labelled};
  for (const RowPart& part : row_parts(microbatch)) {
    const int64_t n = part.length + part.pad;
    counts.tokens += n;
    counts.labelled += part.pad;
    counts.attention_pairs += n * part.position + n * (n + 1) / 2;
    ++counts.row_parts;
    if (part.job >= static_cast<int32_t>(counts.job_tokens.size())) {
      counts.job_tokens.resize(static_cast<size_t>(part.job) + 1, 0);
    }
    counts.job_tokens[static_cast<size_t>(part.job)] += n;
  }
  counts.job_atoms.resize(counts.job_tokens.size(), 0);
  for (const Atom& atom : microbatch.atoms) ++counts.job_atoms[static_cast<size_t>(atom.job)];
  return counts;
}

int64_t saved_bytes(const ModelConfig& config, const StageShape& stage, const Operator& op,
                    const MicrobatchCounts& counts, int64_t element_size) {
  if (!op.keeps) return 0;
  const Sizes s(config, stage, element_size);
  const int64_t e = s.element_size, a = s.accumulation_size;
  int64_t per_token = 0, tokens = counts.tokens;
  switch (op.kind) {
    case OperatorKind::attention_norm:
    case OperatorKind::mlp_norm:
      per_token = s.hidden * e + a;
      tokens = largest_slice(counts.tokens, stage);
      break;
    case OperatorKind::qkv_proj:
      per_token = s.qkv * e;
      break;
    case OperatorKind::attention:
      per_token = s.query * e + s.heads * a;
      break;
    case OperatorKind::gate_up_proj:
      per_token = s.gated * e;
      break;
    case OperatorKind::o_proj:
      break;
    case OperatorKind::down_proj:
      per_token = stage.has_head && op.layer == stage.last_layer - 1 ? s.hidden * a : 0;
      tokens = largest_slice(counts.tokens, stage);
      break;
    default:
      return 0;
  }
  int64_t bytes = tokens * per_token;
  for (const AdapterShape& adapter : op.adapters) {
    const ProjectionSize size = projection_size(config, adapter.projection, stage.tensor_parallel);
    bytes += adapter_tokens(counts, adapter, stage) * kept_bytes_per_token(adapter, size, e);
  }
  return bytes;
}

OperatorCost operator_cost(const ModelConfig& config, const StageShape& stage, const Operator& op,
                           const MicrobatchCounts& counts, int64_t element_size) {
  const Sizes s(config, stage, element_size);
  OperatorCost cost = base_cost(stage, op, counts, s);
  add_adapters(config, stage, op, counts, s, cost);
  cost.bytes_saved = saved_bytes(config, stage, op, counts, element_size);
  return cost;
}

OperatorCost adapter_cost(const ModelConfig& config, const StageShape& stage, const Operator& op,
                          const MicrobatchCounts& counts, int64_t element_size) {
  OperatorCost cost;
  add_adapters(config, stage, op, counts, Sizes(config, stage, element_size), cost);
  return cost;
}

OperatorCost total_cost(const ModelConfig& config, const StageShape& stage, const std::vector<Operator>& operators,
                        const MicrobatchCounts& counts, int64_t element_size) {
  OperatorCost total;
  for (const Operator& op : operators) total += operator_cost(config, stage, op, counts, element_size);
  return total;
}

}  // namespace cotune
