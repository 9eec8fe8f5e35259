#include "train/process_memory.h"

#include <algorithm>
#include <fstream>
#include <string>

#include "ops/memory.h"
#include "train/control_group.h"

namespace cotune {
namespace {

/// What the rest of a process grows by from its first round to its end: pages of libraries that are read when they first run, the heap,
/// stacks, kernels' scratch apart from that of attention, which is counted. At most 53 MiB in the 200 random mixes of tests/cli/memory_test.py.
constexpr int64_t growth_bytes = int64_t{64} << 20;
/// And what comes and goes within a round or while files are made.
constexpr int64_t moment_bytes = int64_t{32} << 20;

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
  return std::max<int64_t>(1, memory_limit_bytes - outside_bytes - expected_growth_bytes());
}

int64_t limit_that_leaves(int64_t tensor_bytes, int64_t outside_bytes) { return tensor_bytes + outside_bytes + expected_growth_bytes(); }

int64_t expected_growth_bytes() { return growth_bytes + moment_bytes; }

int64_t TensorLimit::apply() {
  int64_t bytes = memory_limit_;
  if (bytes > 0 && device_.is_cpu()) {
    // Pages that are held but were never written are not resident: the largest value seen is the true one.
    const int64_t outside = resident_bytes() - memory_usage().held_bytes;
    if (kept_ == 0) kept_ = outside + expected_growth_bytes();
    kept_ = std::max(kept_, outside + moment_bytes);
    bytes = std::max<int64_t>(1, bytes - kept_);
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
