#include "cli/reporting/rank_tracks.h"

namespace cotune {

namespace {

int32_t rank_of(int32_t place, size_t part, size_t parts) { return static_cast<int32_t>(static_cast<size_t>(place) * parts + part); }

/// The lists of the pipeline's ranks for every rank that divides their layers: messages go between those of equal place.
std::vector<std::vector<Action>> for_each_part(const std::vector<std::vector<Action>>& ranks, size_t parts) {
  std::vector<std::vector<Action>> all;
  for (const std::vector<Action>& rank : ranks) {
    for (size_t part = 0; part < parts; ++part) {
      for (Action& action : all.emplace_back(rank)) {
        if (action.peer >= 0) action.peer = rank_of(action.peer, part, parts);
      }
    }
  }
  return all;
}

PipelineSimulation for_each_part(const PipelineSimulation& predicted, size_t parts) {
  PipelineSimulation all = predicted;
  all.ranks.clear();
  for (const SimulatedRank& rank : predicted.ranks) all.ranks.insert(all.ranks.end(), parts, rank);
  all.transfers.clear();
  for (const SimulatedTransfer& transfer : predicted.transfers) {
    for (size_t part = 0; part < parts; ++part) {
      all.transfers.push_back(transfer);
      all.transfers.back().from = rank_of(transfer.from, part, parts);
      all.transfers.back().to = rank_of(transfer.to, part, parts);
    }
  }
  return all;
}

}  // namespace

void RankTracks::add(const ReplicaPlans& plans, const RankTimes& times, double begin_s, bool is_evaluation) {
  for (size_t replica = 0; replica < plans.replicas.size(); ++replica) {
    const RankPlan& plan = plans.replicas[replica];
    const size_t first = times.first_rank[replica];
    const size_t end = replica + 1 < plans.replicas.size() ? times.first_rank[replica + 1] : times.ranks.size();
    const size_t parts = (end - first) / plan.ranks.size();
    Rounds rounds{.planned = plan.schedule,
                  .executed = {for_each_part(plan.ranks, parts)},
                  .predicted = for_each_part(plan.predicted, parts),
                  .measured = {},
                  .is_evaluation = is_evaluation,
                  .first_rank = static_cast<int64_t>(first),
                  .begin_s = begin_s};
    rounds.planned.ranks = for_each_part(rounds.planned.ranks, parts);
    for (size_t rank = first; rank < end; ++rank) {
      const RankTime& time = times.ranks[rank];
      rounds.measured.ranks.push_back({.spans = time.spans, .memory = {}, .exchanges = time.exchange_spans});
      const std::vector<Action>& list = rounds.executed.ranks[rank - first];
      for (const SimulatedSpan& sent : time.sent_spans) {
        rounds.measured.transfers.push_back({.from = static_cast<int32_t>(rank - first),
                                             .to = list[sent.action].peer,
                                             .action = sent.action,
                                             .start_s = sent.start_s,
                                             .end_s = sent.end_s});
      }
      span_count_ += time.spans.size() + time.sent_spans.size() + time.exchange_spans.size();
    }
    rounds_.push_back(std::move(rounds));
  }
}

std::vector<TracedRun> RankTracks::runs(bool emulated, int64_t first_process, double origin_s) const {
  std::vector<TracedRun> runs;
  const auto add = [&](const Rounds& of, const char* name, int64_t process, const PipelineSchedule& schedule, const PipelineSimulation& simulation) {
    runs.push_back({.schedule = &schedule,
                    .simulation = &simulation,
                    .name = name,
                    .process = process,
                    .first_rank = of.first_rank,
                    .start_s = of.begin_s - origin_s});
  };
  for (const Rounds& each : rounds_) {
    if (!each.is_evaluation) add(each, "planned", first_process, each.planned, each.predicted);
    add(each, emulated ? "emulated" : "measured", first_process + 1, each.executed, each.measured);
  }
  return runs;
}

}  // namespace cotune
