/// Fuzz target: any bytes as a trace give jobs of known kinds and tenants that come back from their CSV, or a UserError.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "cluster/trace_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cotune;
  try {
    const Trace trace = parse_trace_file({reinterpret_cast<const char*>(data), size}, "trace.csv").trace;
    const Trace again = parse_trace_file(to_csv(trace), "again.csv").trace;
    COTUNE_CHECK(again.kinds == trace.kinds && again.jobs.size() == trace.jobs.size());
    for (const TraceJob& job : trace.jobs) {
      COTUNE_CHECK(std::isfinite(job.arrival_s) && job.duration_s > 0 && job.stops_after > 0 && job.stops_after <= 1);
      COTUNE_CHECK(static_cast<size_t>(job.kind) < trace.kinds.size() && static_cast<size_t>(job.tenant) < trace.tenants.size());
    }
  } catch (const UserError&) {
  }
  return 0;
}
