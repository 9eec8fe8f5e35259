/// Which of our CPU kernels this machine can run. Chosen at run time; the portable ATen path in ops/ stands beside them.
#pragma once

#include <string>

namespace cotune::kernels {

/// What the processor (and the operating system, for AMX tile state) offers.
struct CpuFeatures {
  bool avx2 = false;         ///< and FMA: kernels for both dtypes
  bool avx512 = false;       ///< F, BW, VL, DQ: kernels for both dtypes
  bool avx512_bf16 = false;  ///< the bf16 kernels that widen nothing
  bool amx_bf16 = false;     ///< the bf16 kernels on tiles; permission for tile state has been asked for and granted
};

/// Detected once. AMX needs a system call per process, made here.
const CpuFeatures& cpu_features();

/// How matrix products are computed. amx_f32 computes in f32: operands are sums of three bf16 parts whose products run
/// on AMX tiles (kernels/float_parts.h); products too narrow to gain by it run on vectors, as under avx512. avx2_bf16 and
/// avx512_widened widen bf16 and multiply and sum in f32.
enum class Isa { none, avx2, avx2_bf16, avx512, avx512_widened, avx512_bf16, amx_bf16, amx_f32 };

/// The fastest instruction set for products in bf16, or Isa::none where only the ATen path works.
/// COTUNE_CPU_ISA=none|avx2|avx512|avx512_bf16|amx lowers it (read once, at the first call): for tests and comparisons. Without AVX-512 BF16, and
/// under avx512, bf16 is widened.
Isa bf16_isa();
/// The same for f32: amx_f32, avx512, avx2 or none.
Isa f32_isa();

/// Which compilation of kernels/vectors.h computes in a dtype: that of its instruction set, or where that is switched off (none) of the
/// best that there is. Throws InternalError where the processor has no vectors for it.
enum class Vectors { avx2, avx512_widened, avx512 };
Vectors vectors_for_bf16();
Vectors vectors_for_f32();

std::string to_string(Isa isa);

}  // namespace cotune::kernels
