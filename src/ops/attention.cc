#include "ops/attention.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "kernels/attention.h"
#include "kernels/rope.h"
#include "ops/backend.h"
#include "ops/low_rank_forms.h"
#include "ops/memory.h"

namespace cotune {
namespace {

struct QkvViews {
  at::Tensor q, k, v;
};

QkvViews views(const at::Tensor& qkv, const AttentionShape& shape) {
  return {qkv.narrow(1, 0, shape.query_columns()), qkv.narrow(1, shape.query_columns(), shape.kv_columns()),
          qkv.narrow(1, shape.query_columns() + shape.kv_columns(), shape.kv_columns())};
}

void store_in_chains(const QkvViews& parts, const std::vector<AttentionSegment>& segments) {
  for (const AttentionSegment& segment : segments) {
    if (segment.chain == nullptr) continue;
    segment.chain->keys.narrow(0, segment.position, segment.count).copy_(parts.k.narrow(0, segment.begin, segment.count));
    segment.chain->values.narrow(0, segment.position, segment.count)
        .copy_(parts.v.narrow(0, segment.begin, segment.count));
  }
}

bool use_attention_kernels(const at::Tensor& qkv, const AttentionShape& shape) {
  return use_kernels(qkv) && shape.head_dim % 16 == 0 && shape.head_dim <= 128;
}

kernels::AttentionShape kernel_shape(const AttentionShape& shape) {
  return {shape.heads, shape.kv_heads, shape.head_dim, 1.0f / std::sqrt(static_cast<float>(shape.head_dim))};
}

std::vector<kernels::AttentionSegment> kernel_segments(const QkvViews& parts,
                                                       const std::vector<AttentionSegment>& segments) {
  std::vector<kernels::AttentionSegment> result;
  result.reserve(segments.size());
  const int64_t element = static_cast<int64_t>(parts.k.element_size());
  for (const AttentionSegment& segment : segments) {
    const at::Tensor& keys = segment.chain ? segment.chain->keys : parts.k;
    const at::Tensor& values = segment.chain ? segment.chain->values : parts.v;
    const int64_t skip = segment.chain ? 0 : segment.begin * keys.stride(0) * element;
    result.push_back({segment.begin, segment.count, segment.position,
                      static_cast<const char*>(keys.const_data_ptr()) + skip,
                      static_cast<const char*>(values.const_data_ptr()) + skip, keys.stride(0)});
  }
  return result;
}

/// [tokens, heads·head_dim] → [heads, tokens, head_dim] in the accumulation dtype, kv heads repeated to `heads`.
at::Tensor by_head(const at::Tensor& x, int64_t own_heads, int64_t heads, int64_t head_dim, at::ScalarType wide) {
  at::Tensor y = x.reshape({x.size(0), own_heads, head_dim}).transpose(0, 1).to(wide);
  return own_heads == heads ? y : y.repeat_interleave(heads / own_heads, 0);
}

/// The ATen path of one segment: keys and values of the row up to and including the segment.
struct DenseSegment {
  at::Tensor q, k, v;  ///< [heads, count or tokens so far, head_dim]
  at::Tensor scores;   ///< [heads, count, tokens so far], masked
};

DenseSegment dense_segment(const QkvViews& parts, const AttentionSegment& segment, const AttentionShape& shape,
                           at::ScalarType wide) {
  const int64_t total = segment.position + segment.count;
  const at::Tensor keys = segment.chain ? segment.chain->keys.narrow(0, 0, total) : parts.k.narrow(0, segment.begin, total);
  const at::Tensor values =
      segment.chain ? segment.chain->values.narrow(0, 0, total) : parts.v.narrow(0, segment.begin, total);
  DenseSegment dense;
  dense.q = by_head(parts.q.narrow(0, segment.begin, segment.count), shape.heads, shape.heads, shape.head_dim, wide);
  dense.k = by_head(keys, shape.kv_heads, shape.heads, shape.head_dim, wide);
  dense.v = by_head(values, shape.kv_heads, shape.heads, shape.head_dim, wide);
  dense.scores = at::bmm(dense.q, dense.k.transpose(1, 2)) / std::sqrt(static_cast<double>(shape.head_dim));
  const at::Tensor query_position =
      at::arange(segment.position, total, at::TensorOptions().device(keys.device()).dtype(at::kLong)).unsqueeze(1);
  const at::Tensor key_position = at::arange(0, total, query_position.options());
  dense.scores.masked_fill_(key_position.unsqueeze(0) > query_position, -INFINITY);
  return dense;
}

at::Tensor by_token(const at::Tensor& x) {  // [heads, tokens, head_dim] → [tokens, heads·head_dim]
  return x.transpose(0, 1).reshape({x.size(1), x.size(0) * x.size(2)});
}

/// Sums the query heads of each kv head.
at::Tensor sum_groups(const at::Tensor& x, int64_t kv_heads) {
  return x.reshape({kv_heads, x.size(0) / kv_heads, x.size(1), x.size(2)}).sum(1);
}

}  // namespace

RotaryTable rotary_table(const std::vector<double>& inverse_frequencies, int64_t positions, at::ScalarType compute,
                         at::Device device) {
  const at::Tensor frequencies = at::tensor(inverse_frequencies, at::kDouble);
  const auto options = at::TensorOptions().dtype(accumulation_dtype(compute)).device(device);
  RotaryTable table{at::empty({positions, frequencies.size(0)}, options), at::empty({positions, frequencies.size(0)}, options)};
  constexpr int64_t block = 1024;  // positions: the angles, in f64, never exist as a whole
  for (int64_t begin = 0; begin < positions; begin += block) {
    const int64_t end = std::min(positions, begin + block);
    const at::Tensor angles = at::arange(begin, end, at::kDouble).unsqueeze(1) * frequencies;
    table.cosine.narrow(0, begin, end - begin).copy_(angles.cos());
    table.sine.narrow(0, begin, end - begin).copy_(angles.sin());
  }
  return table;
}

void rotate_in_place(at::Tensor& x, const at::Tensor& positions, const RotaryTable& table, int64_t heads,
                     int64_t head_dim, int direction) {
  if (use_kernels(x)) {
    const int32_t* position = positions.const_data_ptr<int32_t>();
    const bool inside = std::all_of(position, position + positions.size(0),
                                    [&](int32_t p) { return p >= 0 && p < table.cosine.size(0); });
    COTUNE_CHECK(inside, "a position lies beyond the {} of the rotary table", table.cosine.size(0));
    kernels::rotate_in_place(kernel_dtype(x.scalar_type()), x.mutable_data_ptr(), x.size(0), x.stride(0), heads,
                             head_dim, positions.const_data_ptr<int32_t>(), table.cosine.const_data_ptr<float>(),
                             table.sine.const_data_ptr<float>(),
                             direction > 0 ? kernels::RopeDirection::forward : kernels::RopeDirection::backward);
    return;
  }
  const at::ScalarType wide = table.cosine.scalar_type();
  at::Tensor rotated = x.narrow(1, 0, heads * head_dim);
  const at::Tensor pairs = rotated.to(wide).reshape({x.size(0), heads, 2, head_dim / 2});
  const at::Tensor first = pairs.select(2, 0), second = pairs.select(2, 1);
  const at::Tensor cosine = table.cosine.index_select(0, positions).unsqueeze(1);
  const at::Tensor sine = table.sine.index_select(0, positions).unsqueeze(1) * direction;
  const at::Tensor result = at::stack({first * cosine - second * sine, second * cosine + first * sine}, 2);
  rotated.copy_(result.reshape({x.size(0), heads * head_dim}));
}

AttentionResult attention(const at::Tensor& qkv, const std::vector<AttentionSegment>& segments,
                          const AttentionShape& shape) {
  const QkvViews parts = views(qkv, shape);
  store_in_chains(parts, segments);
  const at::ScalarType wide = accumulation_dtype(qkv.scalar_type());
  AttentionResult result{at::empty({qkv.size(0), shape.query_columns()}, qkv.options()),
                         at::empty({qkv.size(0), shape.heads}, qkv.options().dtype(wide))};
  if (use_attention_kernels(qkv, shape)) {
    kernels::attention_forward(kernel_dtype(qkv.scalar_type()), kernel_shape(shape), kernel_segments(parts, segments),
                               parts.q.const_data_ptr(), parts.q.stride(0), result.out.mutable_data_ptr(),
                               result.out.stride(0), result.lse.mutable_data_ptr<float>());
    return result;
  }
  for (const AttentionSegment& segment : segments) {
    const DenseSegment dense = dense_segment(parts, segment, shape, wide);
    const at::Tensor lse = dense.scores.logsumexp(-1);
    const at::Tensor out = at::bmm((dense.scores - lse.unsqueeze(-1)).exp(), dense.v);
    result.out.narrow(0, segment.begin, segment.count).copy_(by_token(out));
    result.lse.narrow(0, segment.begin, segment.count).copy_(lse.t());
  }
  return result;
}

at::Tensor attention_backward(const at::Tensor& d_out, const at::Tensor& qkv, const AttentionResult& forward,
                              const std::vector<AttentionSegment>& segments, const AttentionShape& shape) {
  const QkvViews parts = views(qkv, shape);
  const at::ScalarType wide = accumulation_dtype(qkv.scalar_type());
  at::Tensor d_qkv = at::empty_like(qkv);
  const QkvViews gradients = views(d_qkv, shape);
  for (const AttentionSegment& segment : segments) {
    if (segment.chain == nullptr || segment.chain->key_gradients.defined()) continue;
    const MemoryScope scope(MemoryKind::chain_kv);
    segment.chain->key_gradients = at::zeros(segment.chain->keys.sizes(), qkv.options().dtype(wide));
    segment.chain->value_gradients = at::zeros_like(segment.chain->key_gradients);
  }
  if (use_attention_kernels(qkv, shape)) {
    const int64_t element = static_cast<int64_t>(qkv.element_size());
    std::vector<kernels::AttentionKvGradient> destinations;
    destinations.reserve(segments.size());
    for (const AttentionSegment& segment : segments) {
      kernels::AttentionKvGradient destination;
      if (segment.chain != nullptr) {
        destination.dk_accumulator = segment.chain->key_gradients.mutable_data_ptr<float>();
        destination.dv_accumulator = segment.chain->value_gradients.mutable_data_ptr<float>();
      } else {
        const int64_t skip = segment.begin * d_qkv.stride(0) * element;
        destination.dk = static_cast<char*>(gradients.k.mutable_data_ptr()) + skip;
        destination.dv = static_cast<char*>(gradients.v.mutable_data_ptr()) + skip;
        destination.stride = d_qkv.stride(0);
      }
      destinations.push_back(destination);
    }
    const kernels::DType dtype = kernel_dtype(qkv.scalar_type());
    kernels::attention_backward(dtype, kernel_shape(shape), kernel_segments(parts, segments), destinations,
                                parts.q.const_data_ptr(), parts.q.stride(0), forward.out.const_data_ptr(),
                                forward.out.stride(0), d_out.const_data_ptr(), d_out.stride(0),
                                forward.lse.const_data_ptr<float>(), gradients.q.mutable_data_ptr(),
                                gradients.q.stride(0));
  } else {
    const double scale = 1.0 / std::sqrt(static_cast<double>(shape.head_dim));
    for (const AttentionSegment& segment : segments) {
      const DenseSegment dense = dense_segment(parts, segment, shape, wide);
      const at::Tensor lse = forward.lse.narrow(0, segment.begin, segment.count).t().unsqueeze(-1);
      const at::Tensor weights = (dense.scores - lse).exp();
      const at::Tensor d = by_head(d_out.narrow(0, segment.begin, segment.count), shape.heads, shape.heads,
                                   shape.head_dim, wide);
      const at::Tensor d_weights = at::bmm(d, dense.v.transpose(1, 2));
      const at::Tensor d_scores = weights * (d_weights - (d_weights * weights).sum(-1, true)) * scale;
      const at::Tensor dk = by_token(sum_groups(at::bmm(d_scores.transpose(1, 2), dense.q), shape.kv_heads));
      const at::Tensor dv = by_token(sum_groups(at::bmm(weights.transpose(1, 2), d), shape.kv_heads));
      gradients.q.narrow(0, segment.begin, segment.count).copy_(by_token(at::bmm(d_scores, dense.k)));
      if (segment.chain == nullptr) {
        gradients.k.narrow(0, segment.begin, segment.count).copy_(dk);
        gradients.v.narrow(0, segment.begin, segment.count).copy_(dv);
      } else {
        segment.chain->key_gradients.narrow(0, 0, dk.size(0)).add_(dk);
        segment.chain->value_gradients.narrow(0, 0, dv.size(0)).add_(dv);
      }
    }
  }
  for (const AttentionSegment& segment : segments) {
    if (segment.chain == nullptr) continue;
    gradients.k.narrow(0, segment.begin, segment.count)
        .copy_(segment.chain->key_gradients.narrow(0, segment.position, segment.count));
    gradients.v.narrow(0, segment.begin, segment.count)
        .copy_(segment.chain->value_gradients.narrow(0, segment.position, segment.count));
  }
  return d_qkv;
}

}  // namespace cotune
