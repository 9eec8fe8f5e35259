#define COTUNE_WIDENED
#include "kernels/attention_tiles_avx512.h"

namespace cotune::kernels {

const AttentionKernels& attention_bf16_avx512_widened() { return attention_by<VectorProducts<uint16_t>>(); }

}  // namespace cotune::kernels
