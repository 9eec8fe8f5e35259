#include "kernels/attention.h"

#include <omp.h>

#include "base/error.h"
#include "kernels/attention_kernels.h"
#include "kernels/isa.h"

namespace cotune::kernels {
namespace {

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

template <typename Run>
void run_tasks(const AttentionKernels& kernels, const AttentionCall& call, const std::vector<AttentionTask>& tasks,
               Run run) {
#pragma omp parallel if (tasks.size() > 1)
  {
    kernels.enter();
#pragma omp for schedule(dynamic, 1)
    for (size_t i = 0; i < tasks.size(); ++i) run(call, tasks[i]);
    kernels.leave();
  }
}

}  // namespace

void attention_forward(DType dtype, const AttentionShape& shape, std::span<const AttentionSegment> segments,
                       const void* q, int64_t q_stride, void* out, int64_t out_stride, float* lse) {
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
  run_tasks(kernels, call, plan_attention_forward(shape, segments, omp_get_max_threads()), kernels.forward);
}

void attention_backward(DType dtype, const AttentionShape& shape, std::span<const AttentionSegment> segments,
                        std::span<const AttentionKvGradient> gradients, const void* q, int64_t q_stride,
                        const void* out, int64_t out_stride, const void* dout, int64_t dout_stride, const float* lse,
                        void* dq, int64_t dq_stride) {
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
  run_tasks(kernels, call, plan_attention_backward(shape, segments, omp_get_max_threads()), kernels.backward);
}

}  // namespace cotune::kernels
