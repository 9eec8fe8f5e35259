#include "cluster/philly_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/random.h"

namespace cotune {
namespace {

/// Independent draws of one job: uniforms of its key, but for the normal duration, which takes two, of a key of its own.
enum Draw : uint64_t { gap, duration, tokens, rows, rank, tenant, priority, has_deadline, slack, stops, stop_share };

int32_t draw_tenant(double position, int64_t tenants) {
  double total = 0;
  for (int64_t i = 0; i < tenants; ++i) total += 1.0 / static_cast<double>(i + 1);
  double left = position * total;
  for (int64_t i = 0; i + 1 < tenants; ++i) {
    left -= 1.0 / static_cast<double>(i + 1);
    if (left < 0) return static_cast<int32_t>(i);
  }
  return static_cast<int32_t>(tenants - 1);
}

int64_t draw_priority(double position, int64_t priorities) {
  int64_t level = 0;
  for (double left = 1.0 / 3; level + 1 < priorities && position < left; left /= 3) ++level;
  return level;
}

}  // namespace

Trace philly_trace(const PhillyTrace& settings) {
  Trace trace;
  std::vector<JobKind> drawn;
  const double ratio = settings.deviation_minutes / settings.mean_minutes;
  const double sigma = std::sqrt(std::log1p(ratio * ratio));
  const double mu = std::log(settings.mean_minutes) - sigma * sigma / 2;
  const auto pick = [](const std::vector<int64_t>& values, uint64_t key, Draw what) {
    return values[uniform_below(key, what, values.size())];
  };
  double minute = 0;
  for (uint64_t index = 0;; ++index) {
    const uint64_t key = mix_key(mix_key(settings.seed, key_of("philly")), index);
    minute += -std::log1p(-uniform(key, gap)) / settings.arrivals_per_minute;
    if (minute >= settings.minutes) break;
    TraceJob job;
    job.name = fmt::format("job{}", index);
    job.arrival_s = 60 * minute;
    job.duration_s = 60 * std::exp(mu + sigma * normal(mix_key(key, duration), 0));
    job.tenant = draw_tenant(uniform(key, tenant), settings.tenants);
    job.priority = draw_priority(uniform(key, priority), settings.priorities);
    if (uniform(key, has_deadline) < settings.deadline_share) {
      job.deadline_s = job.arrival_s + job.duration_s * (2 + 6 * uniform(key, slack));
    }
    if (uniform(key, stops) < settings.early_stop_share) job.stops_after = 0.3 + 0.6 * uniform(key, stop_share);
    drawn.push_back({pick(settings.rows, key, rows), pick(settings.row_tokens, key, tokens), AdapterMethod::lora,
                     pick(settings.ranks, key, rank)});
    trace.jobs.push_back(job);
  }
  trace.kinds = drawn;
  std::sort(trace.kinds.begin(), trace.kinds.end());
  trace.kinds.erase(std::unique(trace.kinds.begin(), trace.kinds.end()), trace.kinds.end());
  for (size_t i = 0; i < drawn.size(); ++i) {
    const auto place = std::lower_bound(trace.kinds.begin(), trace.kinds.end(), drawn[i]);
    trace.jobs[i].kind = static_cast<int32_t>(place - trace.kinds.begin());
  }
  for (int64_t i = 0; i < settings.tenants; ++i) trace.tenants.push_back(fmt::format("tenant{}", i));
  return trace;
}

}  // namespace cotune
