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

/// Which keys of a block lie in the future of its queries: [dense_attention_queries, dense_attention_queries], true above the diagonal.
at::Tensor future_keys(at::Device device) {
  return at::ones({dense_attention_queries, dense_attention_queries}, at::TensorOptions().device(device).dtype(at::kBool)).triu_(1);
}

/// The ATen path: a segment block by block of its queries, so that scores never exist for more than one block and keys beyond a block are
/// left out. Keys and values of the row up to and including the segment are copied once.
class DenseSegment {
 public:
  /// future: future_keys of the device. All that is given must outlive this.
  DenseSegment(const QkvViews& parts, const AttentionSegment& segment, const AttentionShape& shape, at::ScalarType wide,
               const at::Tensor& future)
      : parts_(parts), segment_(segment), shape_(shape), wide_(wide), future_(future), total_(segment.position + segment.count) {
    const bool chained = segment.chain != nullptr;
    keys_ = by_kv_head(chained ? segment.chain->keys.narrow(0, 0, total_) : parts.k.narrow(0, segment.begin, total_), shape, wide);
    values_ = by_kv_head(chained ? segment.chain->values.narrow(0, 0, total_) : parts.v.narrow(0, segment.begin, total_), shape, wide);
  }

  struct Block {
    int64_t begin = 0, count = 0;  ///< queries: rows of the microbatch
    int64_t seen = 0;              ///< keys up to its last query
    at::Tensor q;                  ///< [kv_heads, groups·count, head_dim], times 1 / √head_dim
    at::Tensor k, v;               ///< [kv_heads, seen, head_dim]
    at::Tensor scores;             ///< [kv_heads, groups·count, seen], masked
  };

  template <typename Body>
  void for_blocks(Body body) const {
    for (int64_t first = 0; first < segment_.count; first += dense_attention_queries) {
      body(block(first, std::min(dense_attention_queries, segment_.count - first)));
    }
  }

  /// [kv_heads, tokens so far, head_dim], zero.
  at::Tensor zeros_of_keys() const { return at::zeros_like(keys_); }

 private:
  Block block(int64_t first, int64_t count) const {
    Block block;
    block.begin = segment_.begin + first;
    block.count = count;
    block.seen = segment_.position + first + count;
    block.q = by_kv_head(parts_.q.narrow(0, block.begin, count), shape_, wide_);
    block.q.mul_(1.0 / std::sqrt(static_cast<double>(shape_.head_dim)));
    block.k = keys_.narrow(1, 0, block.seen);
    block.v = values_.narrow(1, 0, block.seen);
    block.scores = at::bmm(block.q, block.k.transpose(1, 2));
    if (count > 1) {  // only keys of the block itself may lie in the future of its queries
      const at::Tensor future = future_.narrow(0, 0, count).narrow(1, 0, count);
      block.scores.view({-1, count, block.seen})
          .narrow(2, block.seen - count, count)
          .masked_fill_(future, -INFINITY);
    }
    return block;
  }

  const QkvViews& parts_;
  const AttentionSegment& segment_;
  const AttentionShape& shape_;
  at::ScalarType wide_;
  const at::Tensor& future_;
  int64_t total_;
  at::Tensor keys_, values_;
};

}  // namespace

RotaryTable rotary_table(const std::vector<double>& inverse_frequencies, int64_t positions,
                         at::ScalarType compute, at::Device device) {
  const at::Tensor frequencies = at::tensor(inverse_frequencies, at::kDouble);
  const auto options = at::TensorOptions().dtype(accumulation_dtype(compute)).device(device);
  RotaryTable table{at::empty({positions, frequencies.size(0)}, options),
                    at::empty({positions, frequencies.size(0)}, options)};
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
    kernels::rotate_in_place(
        kernel_dtype(x.scalar_type()), x.mutable_data_ptr(), x.size(0), x.stride(0), heads, head_dim,
        positions.const_data_ptr<int32_t>(), table.cosine.const_data_ptr<float>(),
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
    const MemoryScope scope(MemoryKind::workspace);
    kernels::attention_forward(kernel_dtype(qkv.scalar_type()), kernel_shape(shape), kernel_segments(parts, segments),
                               parts.q.const_data_ptr(), parts.q.stride(0), result.out.mutable_data_ptr(),
                               result.out.stride(0), result.lse.mutable_data_ptr<float>(), counted_memory());
    return result;
  }
  const at::Tensor future = future_keys(qkv.device());
  for (const AttentionSegment& segment : segments) {
    DenseSegment(parts, segment, shape, wide, future).for_blocks([&](const DenseSegment::Block& block) {
      const at::Tensor largest = block.scores.amax(-1, true);
      const at::Tensor weights = block.scores.sub_(largest).exp_();
      const at::Tensor sum = weights.sum(-1, true);
      const at::Tensor out = at::bmm(weights, block.v).div_(sum);
      result.out.narrow(0, block.begin, block.count).copy_(by_token(out, block.count));
      result.lse.narrow(0, block.begin, block.count).copy_(by_token(sum.log().add_(largest), block.count));
    });
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
    const MemoryScope scope(MemoryKind::workspace);
    kernels::attention_backward(dtype, kernel_shape(shape), kernel_segments(parts, segments), destinations,
                                parts.q.const_data_ptr(), parts.q.stride(0), forward.out.const_data_ptr(),
                                forward.out.stride(0), d_out.const_data_ptr(), d_out.stride(0),
                                forward.lse.const_data_ptr<float>(), gradients.q.mutable_data_ptr(),
                                gradients.q.stride(0), counted_memory());
  } else {
    const double scale = 1.0 / std::sqrt(static_cast<double>(shape.head_dim));
    const at::Tensor future = future_keys(qkv.device());
    for (const AttentionSegment& segment : segments) {
      const DenseSegment dense(parts, segment, shape, wide, future);
      const at::Tensor d_keys = dense.zeros_of_keys(), d_values = dense.zeros_of_keys();
      dense.for_blocks([&](const DenseSegment::Block& block) {
        const at::Tensor lse = by_kv_head_columns(forward.lse.narrow(0, block.begin, block.count), shape.kv_heads);
        const at::Tensor weights = block.scores.sub_(lse).exp_();
        const at::Tensor d = by_kv_head(d_out.narrow(0, block.begin, block.count), shape, wide);
        at::Tensor d_scores = at::bmm(d, block.v.transpose(1, 2));
        d_scores.sub_((d_scores * weights).sum(-1, true)).mul_(weights);
        d_keys.narrow(1, 0, block.seen).baddbmm_(d_scores.transpose(1, 2), block.q);
        d_values.narrow(1, 0, block.seen).baddbmm_(weights.transpose(1, 2), d);
        gradients.q.narrow(0, block.begin, block.count).copy_(by_token(at::bmm(d_scores, block.k).mul_(scale), block.count));
      });
      const at::Tensor dk = by_token(d_keys, d_keys.size(1)), dv = by_token(d_values, d_values.size(1));
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
