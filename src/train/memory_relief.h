#pragma once

#include <cstdint>

namespace cotune {

/// What a run found to hold its memory limit. run.json keeps it (run_record.h), so that a resumed run begins with it and does
/// not depend on the memory of the day.
struct MemoryRelief {
  int64_t requested_token_budget = 0;  ///< of the run's options: another request makes the rest void
  int64_t token_budget = 0;            ///< that held the limit
  bool recompute = false;
  bool operator==(const MemoryRelief&) const = default;
};

}  // namespace cotune
