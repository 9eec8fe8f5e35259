#include "kernels/attention_tiles_avx512.h"

namespace cotune::kernels {

const AttentionKernels& attention_f32_avx512() { return attention_by<VectorProducts<float>>(); }
const AttentionKernels& attention_bf16_avx512() { return attention_by<VectorProducts<uint16_t>>(); }

}  // namespace cotune::kernels
