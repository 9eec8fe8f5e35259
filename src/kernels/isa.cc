#include "kernels/isa.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>

#include "base/error.h"

namespace cotune::kernels {
namespace {

constexpr int arch_request_permission = 0x1023;  // ARCH_REQ_XCOMP_PERM
constexpr int tile_data_feature = 18;            // XFEATURE_XTILEDATA

CpuFeatures detect() {
  CpuFeatures features;
  __builtin_cpu_init();
  features.avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  features.avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                    __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (features.avx512 && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx)) features.avx512_bf16 = eax & (1u << 5);
  if (features.avx512_bf16 && __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) {
    const bool tiles = (edx & (1u << 22)) && (edx & (1u << 24));  // AMX-BF16 and AMX-TILE
    features.amx_bf16 = tiles && ::syscall(SYS_arch_prctl, arch_request_permission, tile_data_feature) == 0;
  }
  return features;
}

std::string_view isa_limit() {
  const char* wish = std::getenv("COTUNE_CPU_ISA");
  const std::string_view limit = wish == nullptr ? "amx" : wish;
  if (limit != "amx" && limit != "avx512_bf16" && limit != "avx512" && limit != "avx2" && limit != "none") {
    throw_user_error("COTUNE_CPU_ISA: must be none, avx2, avx512, avx512_bf16 or amx, got `{}`", limit);
  }
  return limit;
}

Isa choose_bf16() {
  const CpuFeatures& features = cpu_features();
  const std::string_view limit = isa_limit();
  if (limit == "none" || !features.avx2) return Isa::none;
  if (limit == "avx2" || !features.avx512) return Isa::avx2_bf16;
  if (limit == "avx512" || !features.avx512_bf16) return Isa::avx512_widened;
  return limit == "amx" && features.amx_bf16 ? Isa::amx_bf16 : Isa::avx512_bf16;
}

Isa choose_f32() {
  const CpuFeatures& features = cpu_features();
  const std::string_view limit = isa_limit();
  if (limit == "none" || !features.avx2) return Isa::none;
  if (limit == "avx2" || !features.avx512) return Isa::avx2;
  return limit == "amx" && features.amx_bf16 ? Isa::amx_f32 : Isa::avx512;
}

Vectors vectors_for(Isa isa, bool has_avx512) {
  if (isa == Isa::avx512_widened) return Vectors::avx512_widened;
  if (isa != Isa::avx2 && isa != Isa::avx2_bf16 && has_avx512) return Vectors::avx512;
  COTUNE_CHECK(cpu_features().avx2, "this kernel needs AVX2 and FMA");
  return Vectors::avx2;
}

}  // namespace

const CpuFeatures& cpu_features() {
  static const CpuFeatures features = detect();
  return features;
}

Isa bf16_isa() {
  static const Isa isa = choose_bf16();
  return isa;
}

Isa f32_isa() {
  static const Isa isa = choose_f32();
  return isa;
}

Vectors vectors_for_bf16() { return vectors_for(bf16_isa(), cpu_features().avx512_bf16); }

Vectors vectors_for_f32() { return vectors_for(f32_isa(), cpu_features().avx512); }

std::string to_string(Isa isa) {
  switch (isa) {
    case Isa::none: return "ATen";
    case Isa::avx2:
    case Isa::avx2_bf16: return "AVX2";
    case Isa::avx512: return "AVX-512";
    case Isa::avx512_widened: return "AVX-512, bf16 widened";
    case Isa::avx512_bf16: return "AVX-512 BF16";
    case Isa::amx_bf16: return "AMX BF16";
    case Isa::amx_f32: return "f32 on AMX BF16";
  }
  return "unknown";
}

}  // namespace cotune::kernels
