#include "cli/run/run_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/run/trace_file.h"
#include "schedule/pipeline/simulate.h"
#include "schedule/pipeline/trace_times.h"
#include "train/training_job.h"

namespace cotune {
namespace {

using Json = nlohmann::ordered_json;

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

std::string name_of(const Action& action, const std::map<int32_t, std::string>& jobs) {
  const auto job = jobs.find(action.job);
  switch (action.kind) {
    case ActionKind::forward: return fmt::format("F{}", action.microbatch);
    case ActionKind::recompute: return fmt::format("R{} layer {}", action.microbatch, action.first_layer);
    case ActionKind::backward: return fmt::format("B{}", action.microbatch);
    default: return fmt::format("step {}", job != jobs.end() ? job->second : std::to_string(action.job));
  }
}

Json track_name(int64_t track, const char* name) {
  return {{"name", "thread_name"}, {"ph", "M"}, {"pid", 1}, {"tid", track}, {"args", {{"name", name}}}};
}

}  // namespace

void RunTrace::on_job_started(const TrainingJob& job) { names_[job.index()] = job.spec().name; }

void RunTrace::on_computed(const StepPlan& plan, std::span<const SimulatedSpan> spans, bool is_evaluation) {
  int64_t& count = is_evaluation ? evaluations_ : rounds_;
  ++count;
  if (spans.empty() || slices_.size() >= most_spans) return;
  std::string jobs;
  for (const BatchShape& batch : plan.batches) jobs += (jobs.empty() ? "" : ", ") + names_[batch.job];
  int64_t tokens = 0;
  for (const Microbatch& microbatch : plan.microbatches) tokens += microbatch.token_count();
  slices_.push_back({.track = Track::rounds,
                     .name = fmt::format("{} {}", is_evaluation ? "evaluation" : "round", count),
                     .category = is_evaluation ? "evaluation" : "round",
                     .start_s = spans.front().start_s,
                     .end_s = spans.back().end_s,
                     .jobs = jobs,
                     .tokens = tokens});
  for (const SimulatedSpan& span : spans) {
    const Action& action = plan.actions[span.action];
    Slice slice{.track = Track::microbatches, .name = name_of(action, names_), .start_s = span.start_s, .end_s = span.end_s};
    slice.category = action.kind == ActionKind::forward     ? "forward"
                     : action.kind == ActionKind::backward  ? "backward"
                     : action.kind == ActionKind::recompute ? "recompute"
                                                            : "optimizer_step";
    if (action.microbatch >= 0) {
      const Microbatch& microbatch = plan.microbatches[static_cast<size_t>(action.microbatch)];
      slice.tokens = microbatch.token_count();
      std::set<int32_t> of;
      for (const Atom& atom : microbatch.atoms) of.insert(atom.job);
      for (const int32_t job : of) slice.jobs += (slice.jobs.empty() ? "" : ", ") + names_[job];
    } else {
      slice.jobs = names_[action.job];
    }
    slices_.push_back(std::move(slice));
  }
}

void RunTrace::on_saving(const TrainingJob&) { saving_since_s_ = now_s(); }

void RunTrace::on_checkpoint(const TrainingJob& job) {
  if (slices_.size() >= most_spans) return;
  slices_.push_back(
      {.name = "checkpoint", .category = "checkpoint", .start_s = saving_since_s_, .end_s = now_s(), .jobs = job.spec().name});
}

void RunTrace::on_run_ended(const RunSummary& summary) {
  Json events = Json::array();
  events.push_back({{"name", "process_name"}, {"ph", "M"}, {"pid", 1}, {"args", {{"name", "cotune, " + summary.device}}}});
  events.push_back(track_name(static_cast<int64_t>(Track::rounds), "rounds, evaluations, checkpoints"));
  events.push_back(track_name(static_cast<int64_t>(Track::microbatches), "microbatches, optimizer steps"));
  double begin_s = slices_.empty() ? 0 : slices_.front().start_s;
  for (const Slice& slice : slices_) begin_s = std::min(begin_s, slice.start_s);
  for (const Slice& slice : slices_) {
    Json event{{"name", slice.name},
               {"cat", slice.category},
               {"ph", "X"},
               {"ts", trace_time(slice.start_s - begin_s)},
               {"dur", trace_duration(slice.start_s - begin_s, slice.end_s - begin_s)},
               {"pid", 1},
               {"tid", static_cast<int64_t>(slice.track)},
               {"args", {{"jobs", slice.jobs}}}};
    if (slice.tokens > 0) event["args"]["tokens"] = slice.tokens;
    events.push_back(std::move(event));
  }
  const Json trace{{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events)}};
  write_trace_file(file_, trace.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
}

}  // namespace cotune
