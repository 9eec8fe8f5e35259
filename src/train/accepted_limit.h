/// Which memory limit a message names in place of one that is refused.
#pragma once

#include <cstdint>
#include <string>

namespace cotune {

/// The least limit on the whole process that leaves so much for tensors, in this process or another one like it, in whole MiB.
/// outside_bytes: as tensor_limit_within has them.
int64_t accepted_limit_mib(int64_t tensor_bytes, int64_t outside_bytes);

/// "; accepted are 243 MiB and more".
std::string accepted_limit_text(int64_t tensor_bytes, int64_t outside_bytes);

}  // namespace cotune
