/// Element types of files as torch's.
#pragma once

#include <c10/core/ScalarType.h>

#include <optional>

#include "formats/data_type.h"

namespace cotune {

/// Every DataType has its torch type.
at::ScalarType scalar_type_of(DataType type);

/// Of a type that weights may have. Throws InternalError for another one.
DataType data_type_of(at::ScalarType type);

/// float64, float32, float16 and bfloat16: the types that weights may have.
bool is_weight_type(at::ScalarType type);

}  // namespace cotune
