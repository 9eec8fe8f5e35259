#include "plan/cost/replica_prediction.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/quantity_text.h"
#include "schedule/pipeline/default_order.h"
#include "schedule/pipeline/gpipe.h"
#include "schedule/pipeline/interleaved.h"
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

bool holds_a_full_pipeline(const ReplicaModel& replica, const PricedRows& priced) {
  const std::vector<int64_t> room = room_for_microbatches(replica, priced, message_room(priced));
  for (size_t s = 0; s < room.size(); ++s) {
    if (room[s] < static_cast<int64_t>(room.size() - s) * priced.largest_kept[s]) return false;
  }
  return true;
}

ReplicaPrediction predict_replica(const ReplicaModel& replica, const PricedRows& priced, PipelineOrder order,
                                  int64_t rounds, OrderEffort effort) {
  const size_t ranks = replica.rank_count();
  const bool is_default = order == PipelineOrder::automatic || order == PipelineOrder::split ||
                          (order == PipelineOrder::interleaved && replica.chunks == 1);
  const bool is_chosen = is_default && effort == OrderEffort::full;
  ReplicaPrediction prediction;
  prediction.busy_s.assign(ranks, 0);
  prediction.memory = priced.resident;
  const int64_t messages = is_chosen ? message_room(priced) : 0;
  const std::vector<int64_t> limits = room_for_microbatches(replica, priced, messages);
  // What one microbatch needs is needed under any order.
  for (size_t s = 0; s < ranks; ++s) prediction.memory[s].activations = priced.largest_kept[s] + messages;
  find_overflow(prediction, replica.memory_limit);
  if (!prediction.fits()) {
    prediction.is_bound = true;
    prediction.busy_s = computing_seconds(replica, priced);
    prediction.seconds = *std::max_element(prediction.busy_s.begin(), prediction.busy_s.end());
    return prediction;
  }
  for (StageMemory& each : prediction.memory) each.activations = 0;
  const bool one_job_at_a_time = priced.works.size() > 1;
  for (const PipelineWork& work : priced.works) {
    ReplicaRun run{.work = repeated(work, rounds)};
    ComputeOrder computes;
    if (order == PipelineOrder::gpipe) {
      computes = gpipe(run.work);
    } else if (order == PipelineOrder::one_f_one_b) {
      computes = one_f_one_b(run.work, BatchBoundary::flush);
    } else if (is_chosen) {
      ChosenOrder chosen = choose_order(run.work, replica.links, limits);
      computes = std::move(chosen.order);
      prediction.order = chosen.name;
    } else if (is_default) {
      computes = one_f_one_b(run.work, BatchBoundary::continuous);
    } else {
      computes = interleaved_one_f_one_b(run.work, one_job_at_a_time ? BatchBoundary::flush : BatchBoundary::continuous);
    }
    run.schedule = make_schedule(run.work, computes, replica.links);
    const PipelineFacts proven = verify(run.work, run.schedule);
    run.simulation = simulate(run.work, run.schedule, replica.links);
    prediction.seconds += run.simulation.makespan_s / static_cast<double>(rounds);
    for (size_t s = 0; s < ranks; ++s) {
      const SimulatedRank& rank = run.simulation.ranks[s];
      prediction.busy_s[s] += rank.busy_s / static_cast<double>(rounds);
      // In flight by the proof, and with what waits to be sent.
      prediction.memory[s].activations = std::max({prediction.memory[s].activations, rank.peak_bytes, proven.peak_bytes[s]});
    }
    prediction.runs.push_back(std::move(run));
  }
  double busy = 0;
  for (const double seconds : prediction.busy_s) busy += seconds;
  find_overflow(prediction, replica.memory_limit);
  if (prediction.seconds > 0) {
    prediction.bubble = std::max(0.0, 1 - busy / (prediction.seconds * static_cast<double>(ranks)));
  }
  return prediction;
}

}  // namespace cotune
