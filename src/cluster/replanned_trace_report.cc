#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/counted.h"
#include "base/csv_field.h"
#include "base/quantity_text.h"
#include "cluster/replanned_trace.h"

namespace cotune {
namespace {

double tokens_per_s(const ReplannedTrace& result) { return result.end_s > 0 ? result.tokens / result.end_s : 0; }

}  // namespace

std::string to_text(std::span<const ReplannedTrace> results, const Trace& trace) {
  std::string text = fmt::format("{:<14} {:>9} {:>8} {:>12} {:>10} {:>9} {:>7} {:>7} {:>12} {:>14}\n", "moves", "finished", "refused",
                                 "mean JCT min", "end, min", "tokens/s", "asked", "moved", "moving, min", "weights loaded");
  for (const ReplannedTrace& each : results) {
    text += fmt::format("{:<14} {:>9} {:>8} {:>12.1f} {:>10.1f} {:>9.0f} {:>7} {:>7} {:>12.1f} {:>14}\n", name_of(each.rule), each.finished(),
                        static_cast<int64_t>(each.jobs.size()) - each.finished(), each.mean_completion_s(trace) / 60, each.end_s / 60,
                        tokens_per_s(each), each.events.size(), each.moves, each.moving_s / 60, bytes_text(each.weight_bytes));
  }
  constexpr int64_t most_shown = 20;
  const ReplannedTrace& last = results.back();
  int64_t shown = 0;
  for (const ReplanEvent& event : last.events) {
    if (!event.moves()) continue;
    if (shown == 0) text += fmt::format("\nMoves {}:\n", name_of(last.rule));
    if (++shown > most_shown) break;
    text += fmt::format("  {:>8.1f} min, {}: {}; a step {} in place of {}, {} to move\n", event.time_s / 60, counted(event.jobs, "job"),
                        event.replicas, seconds_text(event.best_s, false), event.kept_s > 0 ? seconds_text(event.kept_s, false) : "none",
                        seconds_text(event.move_s, false));
  }
  if (last.moves > most_shown) text += fmt::format("  and {} more, in --json\n", last.moves - most_shown);
  return text;
}

std::string to_csv(std::span<const ReplannedTrace> results, const Trace& trace) {
  std::string text = "moves_when,finished,completion_mean_min,end_min,tokens_per_s,asked,moved,forced,moving_min,weight_bytes\n";
  for (const ReplannedTrace& each : results) {
    text += fmt::format("{},{},{},{},{},{},{},{},{},{}\n", name_of(each.rule), each.finished(), each.mean_completion_s(trace) / 60,
                        each.end_s / 60, tokens_per_s(each), each.events.size(), each.moves, each.forced, each.moving_s / 60, each.weight_bytes);
  }
  return text;
}

std::string jobs_csv(std::span<const ReplannedTrace> results, const Trace& trace) {
  const auto moment = [](double seconds) { return std::isfinite(seconds) ? fmt::format("{}", seconds / 60) : std::string(); };
  std::string text = "moves_when,job,tenant,kind,arrival_min,started_min,finished_min,steps\n";
  for (const ReplannedTrace& each : results) {
    for (size_t j = 0; j < each.jobs.size(); ++j) {
      const TraceJob& job = trace.jobs[j];
      text += fmt::format("{},{},{},{},{},{},{},{}\n", name_of(each.rule), csv_field(job.name),
                          csv_field(trace.tenants[static_cast<size_t>(job.tenant)]), trace.kinds[static_cast<size_t>(job.kind)].name(),
                          moment(job.arrival_s), moment(each.jobs[j].started_s), moment(each.jobs[j].finished_s), each.jobs[j].steps);
    }
  }
  return text;
}

nlohmann::ordered_json to_json(const ReplannedTrace& result, const Trace& trace) {
  nlohmann::ordered_json events = nlohmann::ordered_json::array();
  for (const ReplanEvent& each : result.events) {
    events.push_back({{"time_min", each.time_s / 60},
                      {"jobs", each.jobs},
                      {"waiting", each.waiting},
                      {"decision", name_of(each.decision)},
                      {"replicas", each.replicas},
                      {"kept_s", each.kept_s},
                      {"best_s", each.best_s},
                      {"gain_s", each.gain_s},
                      {"move_s", each.move_s},
                      {"weight_bytes", each.weight_bytes}});
  }
  return {{"moves_when", name_of(result.rule)},
          {"finished", result.finished()},
          {"refused", static_cast<int64_t>(result.jobs.size()) - result.finished()},
          {"completion_mean_min", result.mean_completion_s(trace) / 60},
          {"end_min", result.end_s / 60},
          {"tokens_per_s", tokens_per_s(result)},
          {"moved", result.moves},
          {"forced", result.forced},
          {"moving_min", result.moving_s / 60},
          {"weight_bytes", result.weight_bytes},
          {"events", std::move(events)}};
}

}  // namespace cotune
