#include "ops/attention.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "kernels/attention.h"
#include "kernels/rope.h"
#include "ops/backend.h"
#include "ops/flash_attention.h"
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

/// [tokens, groups·kv_heads·head_dim] → a copy [kv_heads, groups·tokens, head_dim] in the accumulation dtype: the query
/// heads of a kv head one below the other, so that one product per kv head serves them all.
at::Tensor by_kv_head(const at::Tensor& x, const AttentionShape& shape, at::ScalarType wide) {
  const int64_t groups = x.size(1) / shape.kv_columns();
  const at::Tensor heads = x.reshape({x.size(0), shape.kv_heads, groups, shape.head_dim}).permute({1, 2, 0, 3});
  at::Tensor copy = at::empty(heads.sizes(), x.options().dtype(wide));
  copy.copy_(heads);
  return copy.reshape({shape.kv_heads, groups * x.size(0), shape.head_dim});
}

/// One number of every query head: [tokens, heads] → [kv_heads, groups·tokens, 1].
at::Tensor by_kv_head_columns(const at::Tensor& x, int64_t kv_heads) {
  return x.reshape({x.size(0), kv_heads, x.size(1) / kv_heads}).permute({1, 2, 0}).reshape({kv_heads, -1, 1});
}

/// The inverse of both: [kv_heads, groups·tokens, head_dim] → [tokens, groups·kv_heads·head_dim].
at::Tensor by_token(const at::Tensor& x, int64_t tokens) {
  return x.reshape({x.size(0), x.size(1) / tokens, tokens, x.size(2)})
      .permute({2, 0, 1, 3})
      .reshape({tokens, x.size(0) * x.size(1) / tokens * x.size(2)});
}

/// Which keys lie in the future of a query: [count, position + count], true above the diagonal `position`.
at::Tensor future_keys(int64_t position, int64_t count, at::Device device) {
  return at::ones({count, position + count}, at::TensorOptions().device(device).dtype(at::kBool)).triu_(position + 1);
}

/// The masks of a microbatch's segments: those that begin a row are corners of one.
class CausalMasks {
 public:
  CausalMasks(const std::vector<AttentionSegment>& segments, at::Device device) : device_(device) {
    int64_t longest = 0;
    for (const AttentionSegment& segment : segments)
      if (segment.position == 0) longest = std::max(longest, segment.count);
    first_ = future_keys(0, longest, device);
  }
  at::Tensor of(const AttentionSegment& segment) const {
    if (segment.position > 0) return future_keys(segment.position, segment.count, device_);
    return first_.narrow(0, 0, segment.count).narrow(1, 0, segment.count);
  }

 private:
  at::Device device_;
  at::Tensor first_;
};

/// The ATen path of one segment: keys and values of the row up to and including the segment.
struct DenseSegment {
  at::Tensor q;       ///< [kv_heads, groups·count, head_dim], times 1 / √head_dim
  at::Tensor k, v;    ///< [kv_heads, tokens so far, head_dim]
  at::Tensor scores;  ///< [kv_heads, groups·count, tokens so far], masked
};

DenseSegment dense_segment(const QkvViews& parts, const AttentionSegment& segment, const AttentionShape& shape,
                           const CausalMasks& masks, at::ScalarType wide) {
  const int64_t total = segment.position + segment.count;
  const at::Tensor keys = segment.chain ? segment.chain->keys.narrow(0, 0, total) : parts.k.narrow(0, segment.begin, total);
  const at::Tensor values =
      segment.chain ? segment.chain->values.narrow(0, 0, total) : parts.v.narrow(0, segment.begin, total);
  DenseSegment dense;
  dense.q = by_kv_head(parts.q.narrow(0, segment.begin, segment.count), shape, wide);
  dense.q.mul_(1.0 / std::sqrt(static_cast<double>(shape.head_dim)));
  dense.k = by_kv_head(keys, shape, wide);
  dense.v = by_kv_head(values, shape, wide);
  dense.scores = at::bmm(dense.q, dense.k.transpose(1, 2));
  if (segment.count > 1)
    dense.scores.view({-1, segment.count, total}).masked_fill_(masks.of(segment), -INFINITY);
  return dense;
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
  if (GpuKernels* gpu = gpu_kernels_for(x)) {
    COTUNE_CHECK(x.stride(1) == 1);
    gpu->rotate(gpu_type(x.scalar_type()), x.mutable_data_ptr(), x.size(0), x.stride(0), heads, head_dim,
                positions.const_data_ptr<int32_t>(), table.cosine.const_data_ptr<float>(),
                table.sine.const_data_ptr<float>(), table.cosine.size(0), direction);
    return;
  }
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
                          const AttentionShape& shape, const at::Tensor& begins) {
  const QkvViews parts = views(qkv, shape);
  store_in_chains(parts, segments);
  if (takes_flash_attention(qkv, shape)) return flash_attention(qkv, segments, begins, shape);
  const at::ScalarType wide = accumulation_dtype(qkv.scalar_type());
  AttentionResult result{at::empty({qkv.size(0), shape.query_columns()}, qkv.options()),
                         at::empty({qkv.size(0), shape.heads}, qkv.options().dtype(wide))};
  if (use_attention_kernels(qkv, shape)) {
    kernels::attention_forward(kernel_dtype(qkv.scalar_type()), kernel_shape(shape), kernel_segments(parts, segments),
                               parts.q.const_data_ptr(), parts.q.stride(0), result.out.mutable_data_ptr(),
                               result.out.stride(0), result.lse.mutable_data_ptr<float>());
    return result;
  }
  const CausalMasks masks(segments, qkv.device());
  for (const AttentionSegment& segment : segments) {
    DenseSegment dense = dense_segment(parts, segment, shape, masks, wide);
    const at::Tensor largest = dense.scores.amax(-1, true);
    const at::Tensor weights = dense.scores.sub_(largest).exp_();
    const at::Tensor sum = weights.sum(-1, true);
    const at::Tensor out = at::bmm(weights, dense.v).div_(sum);
    result.out.narrow(0, segment.begin, segment.count).copy_(by_token(out, segment.count));
    result.lse.narrow(0, segment.begin, segment.count).copy_(by_token(sum.log().add_(largest), segment.count));
  }
  return result;
}

at::Tensor attention_backward(const at::Tensor& d_out, const at::Tensor& qkv, const AttentionResult& forward,
                              const std::vector<AttentionSegment>& segments, const AttentionShape& shape,
                              const at::Tensor& begins) {
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
  if (!forward.flash_lse.empty()) {
    flash_attention_backward(d_out, qkv, forward, segments, begins, shape, d_qkv);
  } else if (use_attention_kernels(qkv, shape)) {
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
    const CausalMasks masks(segments, qkv.device());
    for (const AttentionSegment& segment : segments) {
      const DenseSegment dense = dense_segment(parts, segment, shape, masks, wide);
      const at::Tensor lse = by_kv_head_columns(forward.lse.narrow(0, segment.begin, segment.count), shape.kv_heads);
      const at::Tensor weights = dense.scores.sub_(lse).exp_();
      const at::Tensor d = by_kv_head(d_out.narrow(0, segment.begin, segment.count), shape, wide);
      at::Tensor d_scores = at::bmm(d, dense.v.transpose(1, 2));
      d_scores.sub_((d_scores * weights).sum(-1, true)).mul_(weights);
      const at::Tensor dk = by_token(at::bmm(d_scores.transpose(1, 2), dense.q), dense.k.size(1));
      const at::Tensor dv = by_token(at::bmm(weights.transpose(1, 2), d), dense.v.size(1));
      gradients.q.narrow(0, segment.begin, segment.count)
          .copy_(by_token(at::bmm(d_scores, dense.k).mul_(scale), segment.count));
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
