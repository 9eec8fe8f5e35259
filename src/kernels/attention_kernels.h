/// The attention kernels of each instruction set, as attention.cc drives them.
#pragma once

#include "kernels/attention.h"
#include "kernels/attention_plan.h"

namespace cotune::kernels {

/// The arguments of attention_forward (dout, dq and gradients empty) or attention_backward.
struct AttentionCall {
  AttentionShape shape;
  std::span<const AttentionSegment> segments;
  std::span<const AttentionKvGradient> gradients;
  const void* q = nullptr;
  int64_t q_stride = 0;
  void* out = nullptr;
  int64_t out_stride = 0;
  const void* dout = nullptr;
  int64_t dout_stride = 0;
  float* lse = nullptr;
  void* dq = nullptr;
  int64_t dq_stride = 0;
};

/// A thread calls enter once, then any tasks, then leave. scratch: AttentionWords::of_forward or of_backward of the task's blocks of keys,
/// aligned to 64 bytes.
struct AttentionKernels {
  void (*enter)();
  void (*leave)();
  void (*forward)(const AttentionCall& call, const AttentionTask& task, uint32_t* scratch);
  void (*backward)(const AttentionCall& call, const AttentionTask& task, uint32_t* scratch);
  int64_t elements_per_word;
};

const AttentionKernels& attention_f32_avx2();
const AttentionKernels& attention_bf16_avx2();
const AttentionKernels& attention_f32_avx512();
const AttentionKernels& attention_bf16_avx512();
const AttentionKernels& attention_bf16_avx512_widened();
const AttentionKernels& attention_bf16_amx();

}  // namespace cotune::kernels
