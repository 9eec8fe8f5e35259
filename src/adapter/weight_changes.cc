#include "adapter/weight_changes.h"

#include <ATen/ATen.h>

#include <cmath>

#include "base/error.h"
#include "jobs/enum_names.h"

namespace cotune {
namespace {

at::Tensor exact(const at::Tensor& value) { return value.to(at::kCPU, at::kDouble).contiguous(); }

}  // namespace

WeightChanges::WeightChanges(const Adapter& adapter) {
  if (adapter.method() == AdapterMethod::bottleneck) {
    throw_user_error("an adapter of method {} cannot be merged: its non-linear layers stand behind the projections, and no weight of the "
                     "model computes them; methods lora and diff_pruning can",
                     name_of(adapter.method()));
  }
  const std::vector<Adapter::NamedTensor> structure = adapter.structure();
  size_t site = 0;
  for (const AdaptedModule& module : adapter.setup().modules) {
    Change change;
    change.in_features = adapter.projection_size_of(module.projection).in;
    switch (adapter.method()) {
      case AdapterMethod::lora: {
        const auto r = static_cast<double>(module.r);
        change.scale = module.alpha / (adapter.setup().spec.use_rslora ? std::sqrt(r) : r);
        change.a = exact(adapter.parameters()[2 * site].value);
        change.b = exact(adapter.parameters()[2 * site + 1].value);
        break;
      }
      case AdapterMethod::diff_pruning:
        change.entry_rows = structure[2 * site].tensor.to(at::kCPU, at::kLong);
        change.offsets = structure[2 * site + 1].tensor.to(at::kCPU, at::kLong);
        change.values = exact(adapter.parameters()[site].value);
        break;
      case AdapterMethod::bottleneck: break;  // refused above
    }
    modules_[module_name(module.layer, module.projection) + ".weight"] = std::move(change);
    ++site;
  }
}

at::Tensor WeightChanges::rows(const std::string& name, int64_t begin, int64_t count) const {
  const Change& change = modules_.at(name);
  if (change.a.defined()) return change.scale * at::mm(change.b.narrow(1, begin, count).t(), change.a);
  at::Tensor added = at::zeros({count, change.in_features}, at::kDouble);
  const int64_t* offset = change.offsets.const_data_ptr<int64_t>() + begin;
  const int64_t* column = change.entry_rows.const_data_ptr<int64_t>();
  const double* value = change.values.const_data_ptr<double>();
  double* out = added.mutable_data_ptr<double>();
  for (int64_t row = 0; row < count; ++row) {
    for (int64_t entry = offset[row]; entry < offset[row + 1]; ++entry) out[row * change.in_features + column[entry]] = value[entry];
  }
  return added;
}

}  // namespace cotune
