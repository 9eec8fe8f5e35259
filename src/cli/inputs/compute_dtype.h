/// The dtypes that models are computed in, and their names.
#pragma once

#include <c10/core/ScalarType.h>

#include <string>

#include "device/compute_device.h"
#include "jobs/job.h"

namespace cotune {

/// Of bfloat16, float32 or float64.
at::ScalarType torch_dtype(const std::string& name);
/// As model.dtype, profiles and plans name it.
std::string dtype_name(at::ScalarType compute);

/// The compute dtype that the model section asks for: `auto` is bfloat16 where the device multiplies it
/// natively, float32 elsewhere.
at::ScalarType compute_dtype(const ModelSpec& model, const ComputeDevice& device);

/// A line that says what `auto` is on this device; "" where the model section names a type, and of an emulated device, whose profile has it.
std::string chosen_dtype_text(const ModelSpec& model, const ComputeDevice& device);

}  // namespace cotune
