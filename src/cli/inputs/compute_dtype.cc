#include "cli/inputs/compute_dtype.h"

#include "kernels/isa.h"

namespace cotune {

at::ScalarType torch_dtype(const std::string& name) {
  return name == "bfloat16" ? at::kBFloat16 : name == "float64" ? at::kDouble : at::kFloat;
}

std::string dtype_name(at::ScalarType compute) {
  if (compute == at::kBFloat16) return "bfloat16";
  return compute == at::kDouble ? "float64" : "float32";
}

at::ScalarType compute_dtype(const ModelSpec& model, const ComputeDevice& device) {
  if (model.dtype != "auto") return torch_dtype(model.dtype);
  const bool native =
      device.is_cpu() ? kernels::cpu_features().avx512_bf16 : device.plugin->has_bf16(device.device.index());
  return native ? at::kBFloat16 : at::kFloat;
}

std::string chosen_dtype_text(const ModelSpec& model, const ComputeDevice& device) {
  if (model.dtype != "auto" || device.is_emulated()) return "";
  const at::ScalarType compute = compute_dtype(model, device);
  const char* reason = compute == at::kBFloat16 ? "which the device multiplies" : "as the device multiplies no bfloat16";
  return "model.dtype: " + dtype_name(compute) + ", " + reason;
}

}  // namespace cotune
