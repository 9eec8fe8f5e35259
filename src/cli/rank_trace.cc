#include "cli/rank_trace.h"

#include "base/file.h"
#include "schedule/pipeline/render.h"

namespace cotune {

void RankTrace::on_ranks(const RankPlan& plan, const RankTimes& times, double begin_s) {
  if (spans_ >= most_spans) return;
  Rounds rounds{.planned = plan.schedule, .executed = {plan.ranks}, .predicted = plan.predicted, .measured = {}, .begin_s = begin_s};
  for (const std::vector<SimulatedSpan>& spans : times.spans) {
    rounds.measured.ranks.push_back({.spans = spans, .memory = {}});
    spans_ += spans.size();
  }
  rounds_.push_back(std::move(rounds));
}

void RankTrace::on_run_ended(const RunSummary&) {
  std::vector<TracedRun> runs;
  for (const Rounds& each : rounds_) {
    runs.push_back({.schedule = &each.planned, .simulation = &each.predicted, .name = "planned", .process = 0, .start_s = each.begin_s});
    runs.push_back({.schedule = &each.executed, .simulation = &each.measured, .name = "measured", .process = 1, .start_s = each.begin_s});
  }
  write_file_atomically(file_, render_trace(runs));
}

}  // namespace cotune
