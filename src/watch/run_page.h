#pragma once

#include <string>

#include "watch/run_log.h"

namespace cotune {

/// A run as one page of HTML that needs nothing else: what came of it, the losses of every job, memory and throughput over time,
/// sample answers before and after, and its configuration. phase: that of its view (RunReport). It loads nothing, and says so to the
/// browser (Content-Security-Policy).
std::string run_page(const RunLog& log, const std::string& phase);

}  // namespace cotune
