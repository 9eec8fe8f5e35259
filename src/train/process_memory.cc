#include "train/process_memory.h"

#include <algorithm>
#include <fstream>
#include <string>

#include "ops/memory.h"
#include "train/control_group.h"

namespace cotune {
namespace {

/// Left between the limit and what tensors may take: stacks, kernels' scratch, the heap of everything else.
constexpr int64_t reserve_bytes = int64_t{96} << 20;

/// The kB value of a line `NAME:   123 kB` in a /proc file; 0 where it is missing.
int64_t proc_bytes(const char* file, const std::string& name) {
  std::ifstream stream(file);
  std::string line;
  while (std::getline(stream, line)) {
    if (line.starts_with(name + ":")) return std::stoll(line.substr(name.size() + 1)) * 1024;
  }
  return 0;
}

}  // namespace

int64_t tensor_limit_within(int64_t memory_limit_bytes, int64_t outside_bytes) {
  return std::max<int64_t>(1, memory_limit_bytes - outside_bytes - reserve_bytes);
}

int64_t TensorLimit::apply() {
  int64_t bytes = memory_limit_;
  if (bytes > 0 && device_.is_cpu()) {
    // Pages that are held but were never written are not resident: the largest value seen is the true one.
    outside_ = std::max(outside_, resident_bytes() - memory_usage().held_bytes);
    bytes = tensor_limit_within(bytes, outside_);
  }
  if (bytes > 0) set(bytes);
  return bytes;
}

void TensorLimit::set(int64_t tensor_bytes) {
  if (device_.is_cpu()) {
    set_memory_limit(tensor_bytes);
  } else {
    device_.plugin->set_memory_limit(device_.device.index(), tensor_bytes);
  }
}

int64_t available_memory_bytes() {
  return std::min(proc_bytes("/proc/meminfo", "MemAvailable"), control_group_allowance_bytes());
}
int64_t resident_bytes() { return proc_bytes("/proc/self/status", "VmRSS"); }
int64_t peak_resident_bytes() { return proc_bytes("/proc/self/status", "VmHWM"); }

}  // namespace cotune
