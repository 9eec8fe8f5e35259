#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "base/json_text.h"
#include "schedule/pipeline/render.h"
#include "schedule/pipeline/trace_times.h"

namespace cotune {
namespace {

using Json = nlohmann::ordered_json;

std::string name_of(const Action& action) {
  switch (action.kind) {
    case ActionKind::forward:
      return fmt::format("F{} task {}", action.microbatch, action.hybrid_task);
    case ActionKind::backward:
      return fmt::format("B{} task {}", action.microbatch, action.hybrid_task);
    case ActionKind::recompute:
      return fmt::format("R{} task {} layer {}", action.microbatch, action.hybrid_task, action.first_layer);
    case ActionKind::optimizer_step:
      return fmt::format("step {} of job {}", action.job_step, action.job);
    case ActionKind::reduce_gradients:
      return fmt::format("gradients of step {} of job {}", action.job_step, action.job);
    case ActionKind::send_error:
      return fmt::format("error {}", action.microbatch);
    default:
      return action.microbatch < 0 ? fmt::format("norm of job {}", action.job)
                                   : fmt::format("activation {}", action.microbatch);
  }
}

Json process_label(int64_t process, const std::string& name) {
  return {{"name", "process_name"}, {"ph", "M"}, {"pid", process}, {"args", {{"name", name}}}};
}

Json track_label(int64_t process, int64_t track, const std::string& name) {
  return {{"name", "thread_name"}, {"ph", "M"}, {"pid", process}, {"tid", track}, {"args", {{"name", name}}}};
}

/// What a message is for, or a computation of: kind of the computation, stage, microbatch or job and step.
using Use = std::tuple<ActionKind, int32_t, int32_t, int32_t, int64_t>;

Use use_of(const Action& action) {
  const bool is_step = action.kind == ActionKind::optimizer_step || action.microbatch < 0;
  if (is_step) return {ActionKind::optimizer_step, action.stage, -1, action.job, action.job_step};
  return {goes_down(action.kind) ? ActionKind::backward : ActionKind::forward, action.stage, action.microbatch, -1, -1};
}

/// Ranks of a run are process 4·process + 1, links 4·process + 3; tracks have even numbers. So none is 0, which Perfetto takes for its process's
/// number, and none its process's number, which to Perfetto is the main thread's: marked, and above the others.
class TraceWriter {
 public:
  void add(const TracedRun& run) {
    run_ = &run;
    start_of_.clear();
    tracks_of_ranks_.clear();
    for (size_t r = 0; r < run.simulation->ranks.size(); ++r) add_rank(r);
    std::vector<SimulatedTransfer> transfers = run.simulation->transfers;
    std::stable_sort(transfers.begin(), transfers.end(),
                     [](const SimulatedTransfer& a, const SimulatedTransfer& b) { return a.start_s < b.start_s; });
    for (const SimulatedTransfer& transfer : transfers) add_transfer(transfer);
  }

  void add(std::span<const TracedTrack> tracks, const std::string& process_name) {
    constexpr int64_t process = 1;
    for (size_t t = 0; t < tracks.size(); ++t) {
      for (const TracedSlice& each : tracks[t].slices) {
        const int64_t track = free_track({process, process_name}, {static_cast<int64_t>(t), tracks[t].name}, each.start_s, each.end_s);
        Json event = slice(each.name, process, track, each.start_s, each.end_s);
        event["cat"] = each.category;
        event["args"] = {{"jobs", each.jobs}};
        if (each.tokens > 0) event["args"]["tokens"] = each.tokens;
        events_.push_back(std::move(event));
      }
    }
  }

  std::string text() && {
    const Json trace{{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events_)}};
    return text_of_json(trace, 1) + "\n";
  }

 private:
  static constexpr int64_t exchange_tracks = 1 << 19;  ///< from here on, of ranks; below are those of what they compute
  struct Named {
    int64_t number = 0;
    std::string name;
  };

  Named ranks_process() const { return {4 * run_->process + 1, run_->name.empty() ? "ranks" : run_->name + ", ranks"}; }
  Named links_process() const { return {4 * run_->process + 3, run_->name.empty() ? "links" : run_->name + ", links"}; }
  int64_t called(int64_t rank) const { return run_->first_rank + rank; }
  double in_file(double seconds) const { return run_->start_s + seconds; }  // of the run at hand

  /// Names a track, and its process, once.
  void name_track(const Named& process, const Named& track) {
    if (processes_.insert(process.number).second) events_.push_back(process_label(process.number, process.name));
    if (tracks_.insert({process.number, track.number}).second) events_.push_back(track_label(process.number, track.number, track.name));
  }

  /// The track of what takes [start_s, end_s): the given one or, where that is taken then, a further one of the same name. A viewer draws
  /// what overlaps on one track wrongly.
  int64_t free_track(const Named& process, const Named& track, double start_s, double end_s) {
    std::vector<double>& ends = ends_[{process.number, track.number}];
    const auto found = std::find_if(ends.begin(), ends.end(), [&](double end) { return end <= start_s; });
    const int64_t lane = found - ends.begin();
    if (found == ends.end()) ends.emplace_back();
    ends[static_cast<size_t>(lane)] = end_s;
    const int64_t used = 2 * (1 + track.number + (lane << 20));
    name_track(process, {used, lane == 0 ? track.name : fmt::format("{} ({})", track.name, lane + 1)});
    return used;
  }

  static Json slice(const std::string& name, int64_t process, int64_t track, double start_s, double end_s) {
    return {{"name", name}, {"ph", "X"}, {"ts", trace_time(start_s)}, {"dur", trace_duration(start_s, end_s)}, {"pid", process}, {"tid", track}};
  }

  void add_rank(size_t r) {
    const int64_t number = called(static_cast<int64_t>(r));
    const SimulatedRank& rank = run_->simulation->ranks[r];
    const Named process = ranks_process();
    const double start_s = rank.spans.empty() ? 0 : rank.spans.front().start_s, end_s = rank.spans.empty() ? 0 : rank.spans.back().end_s;
    const int64_t track = free_track(process, {number, fmt::format("rank {}", number)}, in_file(start_s), in_file(end_s));
    tracks_of_ranks_.push_back(track);
    for (const SimulatedSpan& span : rank.spans) {
      start_of_[{r, use_of(run_->schedule->ranks[r][span.action])}] = span.start_s;
      add_span(r, span, track);
    }
    for (const SimulatedSpan& span : rank.exchanges) {
      const Named exchanged{exchange_tracks + number, fmt::format("rank {}, gradients exchanged", number)};
      add_span(r, span, free_track(process, exchanged, in_file(span.start_s), in_file(span.end_s)));
    }
    for (const MemorySample& sample : rank.memory) {
      events_.push_back({{"name", fmt::format("bytes in flight, rank {}", number)},
                         {"ph", "C"},
                         {"ts", trace_time(in_file(sample.time_s))},
                         {"pid", process.number},
                         {"args", {{"bytes", sample.bytes}}}});
    }
  }

  void add_span(size_t rank, const SimulatedSpan& span, int64_t track) {
    const Action& action = run_->schedule->ranks[rank][span.action];
    Json event = slice(name_of(action), ranks_process().number, track, in_file(span.start_s), in_file(span.end_s));
    event["cat"] = to_string(action.kind);
    event["args"] = {{"stage", action.stage}, {"action", span.action}};
    events_.push_back(std::move(event));
  }

  void add_transfer(const SimulatedTransfer& transfer) {
    const int64_t from = called(transfer.from), to = called(transfer.to);
    const int64_t link = track_of_.try_emplace({from, to}, static_cast<int64_t>(track_of_.size())).first->second;
    const Named process = links_process();
    const double start_s = in_file(transfer.start_s), end_s = in_file(transfer.end_s);
    const int64_t track = free_track(process, {link, fmt::format("rank {} to rank {}", from, to)}, start_s, end_s);
    const Action& action = run_->schedule->ranks[static_cast<size_t>(transfer.from)][transfer.action];
    Json event = slice(name_of(action), process.number, track, start_s, end_s);
    event["cat"] = to_string(action.kind);
    event["args"] = {{"bytes", action.bytes}, {"stage", action.stage}};
    events_.push_back(std::move(event));
    const auto use = start_of_.find({static_cast<size_t>(transfer.to), use_of(action)});
    // Ranks that are processes have clocks of their own, and microbatches that run side by side are one computation.
    if (use == start_of_.end() || use->second < transfer.start_s) return;
    const int64_t flow = flows_++;
    events_.push_back({{"name", "message"},
                       {"cat", "message"},
                       {"ph", "s"},
                       {"id", flow},
                       {"ts", trace_time(start_s)},
                       {"pid", process.number},
                       {"tid", track}});
    events_.push_back({{"name", "message"},
                       {"cat", "message"},
                       {"ph", "f"},
                       {"bp", "e"},
                       {"id", flow},
                       {"ts", trace_time(in_file(use->second))},
                       {"pid", ranks_process().number},
                       {"tid", tracks_of_ranks_[static_cast<size_t>(transfer.to)]}});
  }

  Json events_ = Json::array();
  const TracedRun* run_ = nullptr;
  std::map<std::pair<size_t, Use>, double> start_of_;  // of every computation of the run, by rank
  std::set<int64_t> processes_;
  std::set<std::pair<int64_t, int64_t>> tracks_;
  std::vector<int64_t> tracks_of_ranks_;  // of the run
  std::map<std::pair<int64_t, int64_t>, std::vector<double>> ends_;  // when the tracks of a process and number are free
  std::map<std::pair<int64_t, int64_t>, int64_t> track_of_;  // of the link between two ranks
  int64_t flows_ = 0;
};

}  // namespace

std::string render_trace(std::span<const TracedRun> runs, std::span<const TracedTrack> tracks, const std::string& tracks_name) {
  TraceWriter writer;
  writer.add(tracks, tracks_name);
  for (const TracedRun& run : runs) writer.add(run);
  return std::move(writer).text();
}

std::string render_trace(const PipelineSchedule& schedule, const PipelineSimulation& simulation) {
  const TracedRun run{.schedule = &schedule, .simulation = &simulation};
  return render_trace(std::span(&run, 1));
}

}  // namespace cotune
