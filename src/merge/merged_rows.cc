#include "merge/merged_rows.h"

#include <ATen/ATen.h>

#include "base/error.h"
#include "model/weights/data_type_conversion.h"

namespace cotune {
at::Tensor merged_rows(const at::Tensor& stored, const WeightChanges& changes, const std::string& name, int64_t begin, int64_t count,
                       at::ScalarType dtype) {
  at::Tensor rows = stored.narrow(0, begin, count);
  const bool is_changed = changes.changes(name);
  if (!is_changed && dtype == stored.scalar_type()) return rows.contiguous();
  if (is_changed) rows = rows.to(at::kDouble) + changes.rows(name, begin, count);
  const at::Tensor rounded = rows.to(dtype).contiguous();
  if (!at::isfinite(rounded).all().item<bool>()) {
    throw_user_error("{}: holds values that {} cannot hold, or that are not finite", name, safetensors_name(data_type_of(dtype)));
  }
  return rounded;
}

}  // namespace cotune
