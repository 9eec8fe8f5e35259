#include "cluster/trace.h"

#include <algorithm>
#include <cmath>

namespace cotune {
namespace {

/// The next power of 2^(1/steps), at most `most`.
int64_t on_grid(int64_t tokens, int64_t steps, int64_t most) {
  const double octaves = std::ceil(std::log2(static_cast<double>(tokens)) * static_cast<double>(steps) - 1e-9) / static_cast<double>(steps);
  return std::clamp(static_cast<int64_t>(std::ceil(std::exp2(octaves) - 1e-6)), tokens, most);
}

}  // namespace

Trace with_fewer_kinds(Trace trace, size_t most) {
  int64_t longest = 0;
  for (const JobKind& kind : trace.kinds) longest = std::max(longest, kind.tokens);
  const std::vector<JobKind> given = trace.kinds;
  for (int64_t steps = 8; trace.kinds.size() > most && steps > 0; steps /= 2) {
    std::vector<JobKind> coarse = given;
    for (JobKind& kind : coarse) kind.tokens = on_grid(kind.tokens, steps, longest);
    trace.kinds = coarse;
    std::sort(trace.kinds.begin(), trace.kinds.end());
    trace.kinds.erase(std::unique(trace.kinds.begin(), trace.kinds.end()), trace.kinds.end());
    if (trace.kinds.size() > most && steps > 1) continue;
    for (TraceJob& job : trace.jobs) {
      const auto place = std::lower_bound(trace.kinds.begin(), trace.kinds.end(), coarse[static_cast<size_t>(job.kind)]);
      job.kind = static_cast<int32_t>(place - trace.kinds.begin());
    }
    return trace;
  }
  return trace;
}

}  // namespace cotune
