/// Adapters that runs in f64 have left, compared by their values.
#pragma once

#include <string>
#include <vector>

#include "train/small_run.h"

namespace cotune::testing {

/// To 1e-10 of each tensor's largest value.
inline void expect_equal_adapters(const SmallRun& a, const SmallRun& b, const std::vector<JobSpec>& specs) {
  for (const JobSpec& spec : specs) expect_close_adapter(adapter_bytes(a, spec.name), adapter_bytes(b, spec.name), spec.name);
}

}  // namespace cotune::testing
