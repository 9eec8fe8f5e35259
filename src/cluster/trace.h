/// What arrives at a cluster over time.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "cluster/job_kind.h"

namespace cotune {

struct TraceJob {
  std::string name;
  int32_t kind = 0;    ///< index of Trace::kinds
  int32_t tenant = 0;  ///< index of Trace::tenants
  int64_t priority = 0;  ///< higher goes first
  double arrival_s = 0;
  double duration_s = 0;  ///< of all its steps, alone on an instance
  double deadline_s = std::numeric_limits<double>::infinity();  ///< a moment, not a span
  double stops_after = 1;  ///< (0, 1]: share of its steps after which it stops early; schedulers do not know
  bool dedicated = false;  ///< shares its instance with nobody
  bool operator==(const TraceJob&) const = default;
};

struct Trace {
  std::vector<JobKind> kinds;        ///< ascending, each once
  std::vector<std::string> tenants;  ///< each once
  std::vector<TraceJob> jobs;        ///< by arrival
  bool operator==(const Trace&) const = default;
};

/// The same with at most `most` kinds where that can be had: rows of more tokens stand for those of fewer, at most one in twelve (2^⅛), then one in
/// five, … For traces of real jobs, where nearly every one has a length of its own: what is planned, fitted and queued goes by kinds.
Trace with_fewer_kinds(Trace trace, size_t most);

}  // namespace cotune
