#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "schedule/pipeline/render.h"

namespace cotune {
namespace {

using Json = nlohmann::ordered_json;

constexpr int ranks_process = 0;
constexpr int links_process = 1;

std::string name_of(const Action& action) {
  switch (action.kind) {
    case ActionKind::forward:
      return fmt::format("F{} task {}", action.microbatch, action.hybrid_task);
    case ActionKind::backward:
      return fmt::format("B{} task {}", action.microbatch, action.hybrid_task);
    case ActionKind::optimizer_step:
      return fmt::format("step {} of job {}", action.job_step, action.job);
    case ActionKind::send_error:
      return fmt::format("error {}", action.microbatch);
    default:
      return action.microbatch < 0 ? fmt::format("norm of job {}", action.job)
                                   : fmt::format("activation {}", action.microbatch);
  }
}

Json slice(const std::string& name, int process, int64_t track, double start_s, double end_s) {
  return {{"name", name},   {"ph", "X"},   {"ts", 1e6 * start_s}, {"dur", 1e6 * (end_s - start_s)},
          {"pid", process}, {"tid", track}};
}

Json label(const char* what, int process, int64_t track, const std::string& name) {
  return {{"name", what}, {"ph", "M"}, {"pid", process}, {"tid", track}, {"args", {{"name", name}}}};
}

/// What a message is for, or a computation of: kind of the computation, stage, microbatch or job and step.
using Use = std::tuple<ActionKind, int32_t, int32_t, int32_t, int64_t>;

Use use_of(const Action& action) {
  const bool is_step = action.kind == ActionKind::optimizer_step || action.microbatch < 0;
  if (is_step) return {ActionKind::optimizer_step, action.stage, -1, action.job, action.job_step};
  const bool is_backward = action.kind == ActionKind::backward || action.kind == ActionKind::send_error;
  return {is_backward ? ActionKind::backward : ActionKind::forward, action.stage, action.microbatch, -1, -1};
}

}  // namespace

std::string render_trace(const PipelineSchedule& schedule, const PipelineSimulation& simulation) {
  Json events = Json::array();
  std::map<Use, double> start_of;  // of every computation
  events.push_back(label("process_name", ranks_process, 0, "ranks"));
  for (size_t r = 0; r < simulation.ranks.size(); ++r) {
    const auto track = static_cast<int64_t>(r);
    events.push_back(label("thread_name", ranks_process, track, fmt::format("rank {}", r)));
    for (const SimulatedSpan& span : simulation.ranks[r].spans) {
      const Action& action = schedule.ranks[r][span.action];
      start_of[use_of(action)] = span.start_s;
      Json event = slice(name_of(action), ranks_process, track, span.start_s, span.end_s);
      event["cat"] = to_string(action.kind);
      event["args"] = {{"stage", action.stage}, {"action", span.action}};
      events.push_back(std::move(event));
    }
    for (const MemorySample& sample : simulation.ranks[r].memory) {
      events.push_back({{"name", fmt::format("bytes in flight, rank {}", r)},
                        {"ph", "C"},
                        {"ts", 1e6 * sample.time_s},
                        {"pid", ranks_process},
                        {"args", {{"bytes", sample.bytes}}}});
    }
  }
  std::map<std::pair<int32_t, int32_t>, int64_t> track_of;
  for (const SimulatedTransfer& transfer : simulation.transfers) {
    const auto [found, added] =
        track_of.try_emplace({transfer.from, transfer.to}, static_cast<int64_t>(track_of.size()));
    if (added) {
      if (found->second == 0) events.push_back(label("process_name", links_process, 0, "links"));
      events.push_back(label("thread_name", links_process, found->second,
                             fmt::format("rank {} to rank {}", transfer.from, transfer.to)));
    }
    const Action& action = schedule.ranks[static_cast<size_t>(transfer.from)][transfer.action];
    Json event = slice(name_of(action), links_process, found->second, transfer.start_s, transfer.end_s);
    event["cat"] = to_string(action.kind);
    event["args"] = {{"bytes", action.bytes}, {"stage", action.stage}};
    events.push_back(std::move(event));
    const auto flow = static_cast<int64_t>(&transfer - simulation.transfers.data());
    events.push_back({{"name", "message"},
                      {"cat", "message"},
                      {"ph", "s"},
                      {"id", flow},
                      {"ts", 1e6 * transfer.start_s},
                      {"pid", links_process},
                      {"tid", found->second}});
    events.push_back({{"name", "message"},
                      {"cat", "message"},
                      {"ph", "f"},
                      {"bp", "e"},
                      {"id", flow},
                      {"ts", 1e6 * start_of.at(use_of(action))},
                      {"pid", ranks_process},
                      {"tid", transfer.to}});
  }
  return Json{{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events)}}.dump(1) + "\n";
}

}  // namespace cotune
