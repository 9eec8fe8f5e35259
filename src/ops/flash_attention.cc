#include "ops/flash_attention.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <mutex>

#include "ops/backend.h"

namespace cotune {
namespace {

/// Segments that one call takes: neighbours that are whole rows, or one chunk of a chain.
struct Call {
  size_t first = 0, count = 0;
  int64_t begin = 0, tokens = 0, longest = 0;
  const ChainCache* chain = nullptr;
  int64_t key_count = 0;  ///< of a chain: up to and including the chunk
};

std::vector<Call> calls_of(const std::vector<AttentionSegment>& segments) {
  std::vector<Call> calls;
  for (size_t i = 0; i < segments.size(); ++i) {
    const AttentionSegment& segment = segments[i];
    const bool joins = segment.chain == nullptr && !calls.empty() && calls.back().chain == nullptr &&
                       calls.back().begin + calls.back().tokens == segment.begin;
    if (!joins) calls.push_back({.first = i, .begin = segment.begin, .chain = segment.chain});
    Call& call = calls.back();
    ++call.count;
    call.tokens += segment.count;
    call.longest = std::max(call.longest, segment.count);
    call.key_count = segment.position + segment.count;
  }
  return calls;
}

/// [tokens, heads·head_dim] → [tokens, heads, head_dim], a view.
at::Tensor by_head(const at::Tensor& x, int64_t head_dim) { return x.unflatten(1, {-1, head_dim}); }

struct Heads {
  at::Tensor q, k, v;  ///< [tokens, heads, head_dim] views
};
Heads heads_of(const at::Tensor& qkv, const AttentionShape& shape) {
  const int64_t queries = shape.query_columns(), keys = shape.kv_columns();
  return {by_head(qkv.narrow(1, 0, queries), shape.head_dim), by_head(qkv.narrow(1, queries, keys), shape.head_dim),
          by_head(qkv.narrow(1, queries + keys, keys), shape.head_dim)};
}

/// torch's backward adds a query's gradients up in the order in which blocks end, unless it is asked for equal bits: a setting of
/// the process, which threads that need it at the same time share.
class EqualBits {
 public:
  EqualBits() {
    const std::lock_guard lock(mutex_);
    if (users_++ > 0) return;
    at::Context& context = at::globalContext();
    before_ = {context.deterministicAlgorithms(), context.deterministicAlgorithmsWarnOnly(),
               context.deterministicFillUninitializedMemory()};
    context.setDeterministicAlgorithms(true, false);
    context.setDeterministicFillUninitializedMemory(false);
  }
  ~EqualBits() {
    const std::lock_guard lock(mutex_);
    if (--users_ > 0) return;
    at::Context& context = at::globalContext();
    context.setDeterministicAlgorithms(before_.algorithms, before_.warns);
    context.setDeterministicFillUninitializedMemory(before_.fills);
  }
  EqualBits(const EqualBits&) = delete;
  EqualBits& operator=(const EqualBits&) = delete;

 private:
  struct Settings {
    bool algorithms, warns, fills;
  };
  static inline std::mutex mutex_;
  static inline int users_ = 0;
  static inline Settings before_{};
};

/// Where a call's rows begin and the last one ends, int32 on the device: of `begins`, or made where that is undefined.
at::Tensor places_of(const Call& call, const std::vector<AttentionSegment>& segments, const at::Tensor& begins,
                     at::Device device) {
  if (begins.defined()) return begins.narrow(0, static_cast<int64_t>(call.first), static_cast<int64_t>(call.count) + 1);
  std::vector<int32_t> places{static_cast<int32_t>(call.begin)};
  for (size_t i = call.first; i < call.first + call.count; ++i) {
    places.push_back(static_cast<int32_t>(segments[i].begin + segments[i].count));
  }
  return at::tensor(places, at::kInt).to(device, at::kInt, /*non_blocking=*/true);
}

double scale_of(const AttentionShape& shape) { return 1.0 / std::sqrt(static_cast<double>(shape.head_dim)); }

}  // namespace

bool takes_flash_attention(const at::Tensor& qkv, const AttentionShape& shape) {
  return qkv.scalar_type() == at::kBFloat16 && gpu_kernels_for(qkv) != nullptr && shape.head_dim % 8 == 0 &&
         shape.head_dim <= widest_flash_head;
}

AttentionResult flash_attention(const at::Tensor& qkv, const std::vector<AttentionSegment>& segments,
                                const at::Tensor& begins, const AttentionShape& shape) {
  const Heads heads = heads_of(qkv, shape);
  const std::vector<Call> calls = calls_of(segments);
  const int64_t tokens = qkv.size(0);
  AttentionResult result;
  if (calls.size() != 1 || calls.front().chain != nullptr) {
    result.out = at::empty({tokens, shape.query_columns()}, qkv.options());
  }
  for (const Call& call : calls) {
    if (call.chain != nullptr) {
      const auto [out, lse, state, unused, mask] = at::_flash_attention_forward(
          heads.q.narrow(0, call.begin, call.tokens).unsqueeze(0),
          by_head(call.chain->keys.narrow(0, 0, call.key_count), shape.head_dim).unsqueeze(0),
          by_head(call.chain->values.narrow(0, 0, call.key_count), shape.head_dim).unsqueeze(0), {}, {}, call.tokens,
          call.key_count, 0.0, true, false, scale_of(shape));
      result.out.narrow(0, call.begin, call.tokens).copy_(out.reshape({call.tokens, shape.query_columns()}));
      result.flash_lse.push_back(lse);
      continue;
    }
    const at::Tensor places = places_of(call, segments, begins, qkv.device());
    const auto [out, lse, state, unused, mask] = at::_flash_attention_forward(
        heads.q, heads.k, heads.v, places, places, call.longest, call.longest, 0.0, true, false, scale_of(shape));
    const at::Tensor rows = out.reshape({tokens, shape.query_columns()});
    if (result.out.defined()) {
      result.out.narrow(0, call.begin, call.tokens).copy_(rows.narrow(0, call.begin, call.tokens));
    } else {
      result.out = rows;
    }
    result.flash_lse.push_back(lse);
  }
  return result;
}

void flash_attention_backward(const at::Tensor& d_out, const at::Tensor& qkv, const AttentionResult& forward,
                              const std::vector<AttentionSegment>& segments, const at::Tensor& begins,
                              const AttentionShape& shape, at::Tensor& d_qkv) {
  const EqualBits equal_bits;
  const Heads heads = heads_of(qkv, shape), gradients = heads_of(d_qkv, shape);
  const at::Tensor d_heads = by_head(d_out, shape.head_dim), out = by_head(forward.out, shape.head_dim);
  const at::Tensor no_random_state = at::empty({2}, qkv.options().dtype(at::kUInt64));  // there is no dropout
  const std::vector<Call> calls = calls_of(segments);
  for (size_t i = 0; i < calls.size(); ++i) {
    const Call& call = calls[i];
    const auto rows = [&](const at::Tensor& tensor) { return tensor.narrow(0, call.begin, call.tokens); };
    if (call.chain != nullptr) {
      const auto [dq, dk, dv] = at::_flash_attention_backward(
          rows(d_heads).unsqueeze(0), rows(heads.q).unsqueeze(0),
          by_head(call.chain->keys.narrow(0, 0, call.key_count), shape.head_dim).unsqueeze(0),
          by_head(call.chain->values.narrow(0, 0, call.key_count), shape.head_dim).unsqueeze(0),
          rows(out).unsqueeze(0), forward.flash_lse[i], {}, {}, call.tokens, call.key_count, 0.0, true, no_random_state,
          no_random_state, scale_of(shape));
      rows(gradients.q).copy_(dq.squeeze(0));
      call.chain->key_gradients.narrow(0, 0, call.key_count).add_(dk.reshape({call.key_count, shape.kv_columns()}));
      call.chain->value_gradients.narrow(0, 0, call.key_count).add_(dv.reshape({call.key_count, shape.kv_columns()}));
      continue;
    }
    const at::Tensor places = places_of(call, segments, begins, qkv.device());
    const auto [dq, dk, dv] = at::_flash_attention_backward(
        d_heads, heads.q, heads.k, heads.v, out, forward.flash_lse[i], places, places, call.longest, call.longest, 0.0,
        true, no_random_state, no_random_state, scale_of(shape));
    rows(gradients.q).copy_(rows(dq));
    rows(gradients.k).copy_(rows(dk));
    rows(gradients.v).copy_(rows(dv));
  }
}

}  // namespace cotune
