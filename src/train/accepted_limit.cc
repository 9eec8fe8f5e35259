#include "train/accepted_limit.h"

#include <fmt/format.h>

#include "train/process_memory.h"

namespace cotune {
namespace {

constexpr int64_t bytes_per_mib = int64_t{1} << 20;

/// By what processes differ that do the same: which pages of libraries are resident.
constexpr int64_t variation_bytes = 2 * bytes_per_mib;

}  // namespace

int64_t accepted_limit_mib(int64_t tensor_bytes, int64_t outside_bytes) {
  return (limit_that_leaves(tensor_bytes, outside_bytes) + variation_bytes + bytes_per_mib - 1) / bytes_per_mib;
}

std::string accepted_limit_text(int64_t tensor_bytes, int64_t outside_bytes) {
  return fmt::format("; accepted are {} MiB and more", accepted_limit_mib(tensor_bytes, outside_bytes));
}

}  // namespace cotune
