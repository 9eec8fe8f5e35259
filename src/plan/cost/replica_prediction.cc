#include "plan/cost/replica_prediction.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/quantity_text.h"
#include "schedule/pipeline/compute_graph.h"
#include "schedule/pipeline/gpipe.h"
#include "schedule/pipeline/interleaved.h"
#include "schedule/pipeline/least_makespan.h"
#include "schedule/pipeline/one_f_one_b.h"
#include "schedule/pipeline/verify_pipeline.h"

namespace cotune {
namespace {

PipelineWork repeated(const PipelineWork& work, int64_t rounds) {
  PipelineWork result = work;
  for (int64_t round = 1; round < rounds; ++round) {
    for (PipelineMicrobatch microbatch : work.microbatches) {
      microbatch.round = round;
      // Chains of different rounds are different chains.
      if (microbatch.chain >= 0)
        microbatch.chain += static_cast<int32_t>(round * static_cast<int64_t>(work.microbatches.size()));
      for (JobStep& step : microbatch.jobs) step.step += round;
      result.microbatches.push_back(std::move(microbatch));
    }
  }
  return result;
}

std::string overflow_text(const StageMemory& memory, size_t stage, size_t stages, int64_t limit) {
  const Overflow overflow = memory.overflow(limit);
  return fmt::format("out of memory: stage {} of {} needs {} of {}; {} overflow by {}", stage + 1, stages,
                     bytes_text(memory.total()), bytes_text(limit), overflow.term, bytes_text(overflow.bytes));
}

/// Of the fullest stage, if it does not fit.
void find_overflow(ReplicaPrediction& prediction, int64_t limit) {
  const auto fullest = std::ranges::max_element(prediction.memory, {}, &StageMemory::total);
  if (fullest->total() <= limit) return;
  prediction.constraint = overflow_text(*fullest, static_cast<size_t>(fullest - prediction.memory.begin()), prediction.memory.size(), limit);
  prediction.overflow = fullest->overflow(limit);
}

/// Two messages each way under way on a rank of several.
int64_t message_room(const PricedRows& priced) {
  int64_t both_ways = 0;
  for (const PipelineWork& work : priced.works) {
    if (work.stage_count() == 1) continue;
    for (const PipelineMicrobatch& microbatch : work.microbatches)
      both_ways = std::max(both_ways, microbatch.message_bytes.sum());
  }
  return 2 * both_ways;
}

/// Of each rank's memory, beside what stays and message buffers.
std::vector<int64_t> room_for_microbatches(const ReplicaModel& replica, const PricedRows& priced, int64_t messages) {
  std::vector<int64_t> room;
  for (size_t s = 0; s < replica.rank_count(); ++s) room.push_back(replica.memory_limit - priced.resident[s].total() - messages);
  return room;
}

}  // namespace

int64_t ReplicaPrediction::fullest_bytes() const {
  int64_t most = 0;
  for (const StageMemory& each : memory) most = std::max(most, each.total());
  return most;
}

std::vector<double> computing_seconds(const ReplicaModel& replica, const PricedRows& priced) {
  std::vector<double> of_rank(replica.rank_count(), 0);
  for (const PipelineWork& work : priced.works) {
    for (const PipelineMicrobatch& microbatch : work.microbatches) {
      const auto lowest = static_cast<size_t>(lowest_stage(work, microbatch));
      for (size_t s = 0; s < microbatch.cost.size(); ++s) {
        of_rank[s % of_rank.size()] += microbatch.cost[s].forward_s + (s >= lowest ? microbatch.cost[s].backward_s : 0);
      }
    }
  }
  return of_rank;
}

bool takes_default_order(const ReplicaModel& replica, PipelineOrder order) {
  return order == PipelineOrder::automatic || order == PipelineOrder::split || (order == PipelineOrder::interleaved && replica.chunks == 1);
}

bool holds_a_full_pipeline(const ReplicaModel& replica, const PricedRows& priced) {
  const std::vector<int64_t> room = room_for_microbatches(replica, priced, message_room(priced));
  for (size_t s = 0; s < room.size(); ++s) {
    if (room[s] < static_cast<int64_t>(room.size() - s) * priced.largest_kept[s]) return false;
  }
  return true;
}

namespace {

/// What one microbatch and `messages` need, which is needed under any order; is_bound where that does not fit, else without activations.
ReplicaPrediction without_order(const ReplicaModel& replica, const PricedRows& priced, int64_t messages) {
  ReplicaPrediction prediction;
  prediction.busy_s.assign(replica.rank_count(), 0);
  prediction.memory = priced.resident;
  for (size_t s = 0; s < prediction.memory.size(); ++s) prediction.memory[s].activations = priced.largest_kept[s] + messages;
  find_overflow(prediction, replica.memory_limit);
  if (prediction.fits()) {
    for (StageMemory& each : prediction.memory) each.activations = 0;
  } else {
    prediction.is_bound = true;
    prediction.busy_s = computing_seconds(replica, priced);
    prediction.seconds = std::ranges::max(prediction.busy_s);
  }
  return prediction;
}

constexpr double rounding = 1e-9;  // of sums of the same seconds in another order

/// Of the orders that choose_order does not make.
ComputeOrder order_of(const PipelineWork& work, PipelineOrder order, bool is_one_job_at_a_time) {
  switch (order) {
    case PipelineOrder::gpipe:
      return gpipe(work);
    case PipelineOrder::one_f_one_b:
      return one_f_one_b(work, BatchBoundary::flush);
    default:
      return interleaved_one_f_one_b(work, is_one_job_at_a_time ? BatchBoundary::flush : BatchBoundary::continuous);
  }
}

double makespan_s(const PipelineWork& work, const PipelineCluster& links, const ComputeOrder& order) {
  const auto times = ComputeGraph(work, links).times(order);
  COTUNE_CHECK(times.has_value(), "the order of computations holds a cycle of waits");
  return cotune::makespan_s(*times);
}

/// Works over several rounds, ordered but not scheduled yet.
struct OrderedWork {
  PipelineWork work;
  ComputeOrder order;
};

void add_simulated(ReplicaPrediction& prediction, const ReplicaModel& replica, OrderedWork&& ordered, int64_t rounds) {
  ReplicaRun run{.work = std::move(ordered.work)};
  run.schedule = make_schedule(run.work, ordered.order, replica.links);
  const PipelineFacts proven = verify(run.work, run.schedule);
  run.simulation = simulate(run.work, run.schedule, replica.links);
  prediction.seconds += run.simulation.makespan_s / static_cast<double>(rounds);
  for (size_t s = 0; s < prediction.busy_s.size(); ++s) {
    const SimulatedRank& rank = run.simulation.ranks[s];
    prediction.busy_s[s] += rank.busy_s / static_cast<double>(rounds);
    // In flight by the proof, and with what waits to be sent.
    prediction.memory[s].activations = std::max({prediction.memory[s].activations, rank.peak_bytes, proven.peak_bytes[s]});
  }
  prediction.runs.push_back(std::move(run));
}

void find_bubble(ReplicaPrediction& prediction) {
  double busy = 0;
  for (const double seconds : prediction.busy_s) busy += seconds;
  if (prediction.seconds > 0) prediction.bubble = std::max(0.0, 1 - busy / (prediction.seconds * static_cast<double>(prediction.busy_s.size())));
}

}  // namespace

double least_seconds(const PricedRows& priced, int64_t rounds) {
  double least = 0;
  for (const PipelineWork& work : priced.works) least += least_makespan_s(work, rounds) / static_cast<double>(rounds);
  return least;
}

std::optional<ReplicaPrediction> predict_within(const ReplicaModel& replica, const PricedRows& priced, PipelineOrder order, int64_t rounds,
                                                const PredictionLimits& limits) {
  const bool is_chosen = takes_default_order(replica, order);
  const int64_t messages = is_chosen ? message_room(priced) : 0;
  ReplicaPrediction prediction = without_order(replica, priced, messages);
  if (prediction.is_bound) return prediction;
  std::vector<OrderedWork> ordered;
  double alone_s = 0;  // no message waiting for another
  for (const PipelineWork& work : priced.works) {
    PipelineWork over_rounds = repeated(work, rounds);
    if (is_chosen) {
      ChosenOrder chosen = choose_order(over_rounds, replica.links, room_for_microbatches(replica, priced, messages), limits.most_exchanges);
      prediction.order = chosen.name;
      ordered.push_back({std::move(over_rounds), std::move(chosen.order)});
      alone_s += chosen.makespan_s / static_cast<double>(rounds);
    } else {
      ComputeOrder computes = order_of(over_rounds, order, priced.works.size() > 1);
      if (std::isfinite(limits.below_s)) alone_s += makespan_s(over_rounds, replica.links, computes) / static_cast<double>(rounds);
      ordered.push_back({std::move(over_rounds), std::move(computes)});
    }
    if (alone_s >= limits.below_s * (1 + rounding)) return std::nullopt;
  }
  for (OrderedWork& each : ordered) add_simulated(prediction, replica, std::move(each), rounds);
  find_overflow(prediction, replica.memory_limit);
  find_bubble(prediction);
  return prediction;
}

ReplicaPrediction predict_replica(const ReplicaModel& replica, const PricedRows& priced, PipelineOrder order, int64_t rounds) {
  return *predict_within(replica, priced, order, rounds, {});
}

ReplicaPrediction estimate_replica(const ReplicaModel& replica, const PricedRows& priced, EstimatedOrder order, int64_t rounds) {
  const int64_t messages = message_room(priced);
  ReplicaPrediction prediction = without_order(replica, priced, messages);
  if (prediction.is_bound) return prediction;
  prediction.busy_s = computing_seconds(replica, priced);
  for (const PipelineWork& work : priced.works) {
    const PipelineWork over_rounds = repeated(work, rounds);
    ChosenOrder chosen;
    if (order == EstimatedOrder::chosen) {
      chosen = choose_order(over_rounds, replica.links, room_for_microbatches(replica, priced, messages));
      prediction.order = chosen.name;
    } else {
      chosen.order = one_f_one_b(over_rounds, BatchBoundary::continuous);
      chosen.makespan_s = makespan_s(over_rounds, replica.links, chosen.order);
    }
    prediction.seconds += chosen.makespan_s / static_cast<double>(rounds);
    const std::vector<int64_t> peaks = peak_kept_bytes(over_rounds, chosen.order);
    for (size_t s = 0; s < peaks.size(); ++s) {
      prediction.memory[s].activations = std::max(prediction.memory[s].activations, peaks[s] + messages);
    }
  }
  find_overflow(prediction, replica.memory_limit);
  find_bubble(prediction);
  return prediction;
}

}  // namespace cotune
