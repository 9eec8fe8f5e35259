/// Simulated traces to look at: self-contained SVG.
#pragma once

#include <span>
#include <string>

#include "cluster/replanned_trace.h"
#include "cluster/trace_report.h"

namespace cotune {

/// A simulation with the name that charts give it.
struct ChartedTrace {
  std::string name;
  const Trace* trace = nullptr;
  const TraceSimulation* simulation = nullptr;
};

/// Share of finished jobs over the time from arrival to end, on a logarithmic axis: one curve per simulation.
std::string completion_chart(std::span<const ChartedTrace> traces);

/// Over time, one above the other: running jobs, waiting jobs, busy instances; one curve per simulation.
std::string timeline_chart(std::span<const ChartedTrace> traces);

/// The same two of one deployment that is planned anew, one curve per rule of moving; in place of busy instances the seconds of a step.
std::string completion_chart(std::span<const ReplannedTrace> results, const Trace& trace);
std::string timeline_chart(std::span<const ReplannedTrace> results, const Trace& trace);

/// Bars of throughput, mean time to completion and mean waiting, one per summary.
std::string summary_chart(std::span<const TraceSummary> summaries);

/// Bars of the mean slowdown of the jobs of each tenant (time from arrival to end over the time alone), one per summary; of
/// the first eight tenants.
std::string tenant_chart(std::span<const TraceSummary> summaries);

}  // namespace cotune
