#include "kernels/attention.h"

#include <omp.h>

#include <algorithm>

#include "base/error.h"
#include "kernels/attention_kernels.h"
#include "kernels/attention_scratch.h"
#include "kernels/isa.h"

namespace cotune::kernels {
namespace {

constexpr int64_t word_bytes = sizeof(uint32_t);

const AttentionKernels& kernels_for(DType dtype) {
  if (dtype == DType::f32) return vectors_for_f32() == Vectors::avx2 ? attention_f32_avx2() : attention_f32_avx512();
  if (bf16_isa() == Isa::amx_bf16) return attention_bf16_amx();
  switch (vectors_for_bf16()) {
    case Vectors::avx2: return attention_bf16_avx2();
    case Vectors::avx512_widened: return attention_bf16_avx512_widened();
    case Vectors::avx512: return attention_bf16_avx512();
  }
  return attention_bf16_avx2();
}

void check(const AttentionShape& shape) {
  COTUNE_CHECK(shape.kv_heads > 0 && shape.heads % shape.kv_heads == 0, "{} heads, {} key/value heads", shape.heads,
               shape.kv_heads);
  COTUNE_CHECK(shape.head_dim >= 16 && shape.head_dim <= 128 && shape.head_dim % 16 == 0, "head_dim {}",
               shape.head_dim);
  COTUNE_CHECK(shape.scale > 0, "scale {}", shape.scale);
}

/// Scratch of the threads of a call, while it runs.
class CallScratch {
 public:
  CallScratch(MemorySource source, int64_t bytes_of_thread, int threads)
      : source_(source),
        words_of_thread_(bytes_of_thread / word_bytes),
        bytes_(static_cast<size_t>(bytes_of_thread * threads)),
        memory_(static_cast<uint32_t*>(source.allocate(source.context, bytes_))) {}
  ~CallScratch() { source_.release(source_.context, memory_, bytes_); }
  CallScratch(const CallScratch&) = delete;
  CallScratch& operator=(const CallScratch&) = delete;

  uint32_t* of_thread(int thread) const { return memory_ + thread * words_of_thread_; }

 private:
  MemorySource source_;
  int64_t words_of_thread_;
  size_t bytes_;
  uint32_t* memory_;
};

int64_t key_blocks_of_row(int64_t row_tokens) { return (row_tokens + attention_key_block - 1) / attention_key_block; }

int64_t longest_row(std::span<const AttentionSegment> segments) {
  int64_t longest = 0;
  for (const AttentionSegment& segment : segments) longest = std::max(longest, segment.position + segment.query_count);
  return longest;
}

template <typename Run>
void run_tasks(const AttentionKernels& kernels, const AttentionCall& call, const std::vector<AttentionTask>& tasks,
               int64_t bytes_of_thread, MemorySource memory, Run run) {
  if (tasks.empty()) return;
  const CallScratch scratch(memory, bytes_of_thread, omp_get_max_threads());
#pragma omp parallel if (tasks.size() > 1)
  {
    uint32_t* const own = scratch.of_thread(omp_get_thread_num());
    kernels.enter();
#pragma omp for schedule(dynamic, 1)
    for (size_t i = 0; i < tasks.size(); ++i) run(call, tasks[i], own);
    kernels.leave();
  }
}

}  // namespace

int64_t attention_elements_per_word(DType dtype) { return kernels_for(dtype).elements_per_word; }

int64_t attention_forward_scratch_bytes(DType dtype, const AttentionShape& shape, int64_t row_tokens) {
  return attention_words(attention_elements_per_word(dtype), shape).of_forward(key_blocks_of_row(row_tokens)) * word_bytes;
}

int64_t attention_backward_scratch_bytes(DType dtype, const AttentionShape& shape, int64_t row_tokens) {
  return attention_words(attention_elements_per_word(dtype), shape).of_backward(key_blocks_of_row(row_tokens)) * word_bytes;
}

void attention_forward(DType dtype, const AttentionShape& shape, std::span<const AttentionSegment> segments,
                       const void* q, int64_t q_stride, void* out, int64_t out_stride, float* lse,
                       MemorySource memory) {
  check(shape);
  AttentionCall call;
  call.shape = shape;
  call.segments = segments;
  call.q = q;
  call.q_stride = q_stride;
  call.out = out;
  call.out_stride = out_stride;
  call.lse = lse;
  const AttentionKernels& kernels = kernels_for(dtype);
  run_tasks(kernels, call, plan_attention_forward(shape, segments, omp_get_max_threads()),
            attention_forward_scratch_bytes(dtype, shape, longest_row(segments)), memory, kernels.forward);
}

void attention_backward(DType dtype, const AttentionShape& shape, std::span<const AttentionSegment> segments,
                        std::span<const AttentionKvGradient> gradients, const void* q, int64_t q_stride,
                        const void* out, int64_t out_stride, const void* dout, int64_t dout_stride, const float* lse,
                        void* dq, int64_t dq_stride, MemorySource memory) {
  check(shape);
  COTUNE_CHECK(gradients.size() == segments.size(), "{} gradients for {} segments", gradients.size(), segments.size());
  for (size_t s = 0; s < segments.size(); ++s) {
    const bool whole = gradients[s].dk != nullptr && gradients[s].dv != nullptr;
    const bool chunk = gradients[s].dk_accumulator != nullptr && gradients[s].dv_accumulator != nullptr;
    COTUNE_CHECK(whole != chunk && (chunk || segments[s].position == 0), "segment {}", s);
  }
  const AttentionCall call = {
      .shape = shape,
      .segments = segments,
      .gradients = gradients,
      .q = q,
      .q_stride = q_stride,
      .out = const_cast<void*>(out),
      .out_stride = out_stride,
      .dout = dout,
      .dout_stride = dout_stride,
      .lse = const_cast<float*>(lse),
      .dq = dq,
      .dq_stride = dq_stride,
  };
  const AttentionKernels& kernels = kernels_for(dtype);
  run_tasks(kernels, call, plan_attention_backward(shape, segments, omp_get_max_threads()),
            attention_backward_scratch_bytes(dtype, shape, longest_row(segments)), memory, kernels.backward);
}

}  // namespace cotune::kernels
