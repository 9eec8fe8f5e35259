#include "train/divided_memory.h"

#include <gtest/gtest.h>

#include "schedule/pipeline/pipeline_work.h"

namespace cotune {
namespace {

StageShape stage(int64_t first, int64_t last, int64_t tensor, bool embedding = false, bool head = false) {
  return {.first_layer = first, .last_layer = last, .has_embedding = embedding, .has_head = head, .tensor_parallel = tensor};
}

/// Two ranks with two stages each.
PipelineLayout interleaved() {
  return {.stages = {stage(0, 2, 1, true), stage(2, 3, 1), stage(3, 6, 1), stage(6, 8, 1, false, true)}, .stage_rank = interleaved_stages(2, 2)};
}

TEST(DividedMemory, OfARankIsThatOfAllItsStages) {
  EXPECT_EQ(shapes_of_ranks(interleaved()), (std::vector<StageShape>{stage(0, 5, 1, true), stage(2, 5, 1, false, true)}));
  const PipelineLayout plain{.stages = {stage(0, 3, 2, true), stage(3, 4, 2), stage(4, 8, 2, false, true)}, .stage_rank = one_stage_per_rank(3)};
  EXPECT_EQ(shapes_of_ranks(plain), plain.stages);
}

TEST(DividedMemory, KnowsReplicasAndWhetherRanksAreProcesses) {
  const Parallel one = *parse_parallel("pp=2,vp=2"), two = *parse_parallel("pp=2,vp=2+tp=2");
  const PipelineLayout divided{.stages = {stage(0, 8, 2, true, true)}, .stage_rank = {0}};
  MemoryFacts threads, processes, replicas;
  set_division(threads, one, RankOrder::gpipe, Interleave::automatic, {});
  EXPECT_EQ(threads.rank_order, RankOrder::gpipe);
  EXPECT_EQ(threads.ranks, 2);
  EXPECT_TRUE(threads.interleaves);
  EXPECT_FALSE(threads.ranks_are_processes());
  set_division(processes, one, RankOrder::automatic, Interleave::automatic, std::vector{interleaved()});
  EXPECT_EQ(processes.process_stages, shapes_of_ranks(interleaved()));
  set_division(replicas, two, RankOrder::automatic, Interleave::automatic, std::vector{interleaved(), divided});
  EXPECT_TRUE(replicas.ranks_are_processes());
  ASSERT_EQ(replicas.replicas.size(), 2u);
  EXPECT_EQ(replicas.replicas[1], (MemoryFacts::Replica{2, 2, divided.stages}));
  set_division(threads, *parse_parallel("tp=2,seq"), RankOrder::automatic, Interleave::never, {});
  EXPECT_TRUE(threads.is_sequence_parallel);
  set_division(replicas, *parse_parallel("dp=1+tp=2,seq"), RankOrder::automatic, Interleave::never, {});
  EXPECT_FALSE(replicas.is_sequence_parallel);
  EXPECT_TRUE(replicas.replicas[1].is_sequence_parallel);
}

TEST(DividedMemory, OfOneProcessIsThatOfItsOwnStages) {
  const PipelineLayout three{.stages = {stage(0, 3, 1, true), stage(3, 4, 1), stage(4, 8, 1, false, true)}, .stage_rank = one_stage_per_rank(3)};
  const PipelineLayout divided{.stages = {stage(0, 8, 2, true, true)}, .stage_rank = {0}};
  MemoryFacts facts;
  set_division(facts, *parse_parallel("pp=3"), RankOrder::gpipe, Interleave::automatic, std::vector{three});
  const MemoryFacts second = facts_of_rank(facts, 0, 1, 77);
  EXPECT_EQ(second.process_stages, std::vector{three.stages[1]});
  EXPECT_EQ(second.stages(), 3) << "of the pipeline, which says how many microbatches are in flight";
  EXPECT_EQ(second.weight_bytes, 77);
  set_division(facts, *parse_parallel("pp=3+tp=2"), RankOrder::automatic, Interleave::automatic, std::vector{three, divided});
  for (const MemoryFacts::Replica& replica : facts_of_rank(facts, 1, 0, 77).replicas) {
    EXPECT_EQ(replica, (MemoryFacts::Replica{2, 2, divided.stages}));
  }
}

TEST(DividedMemory, KnowsWhichRanksRunMicrobatchesSideBySide) {
  const auto at_once = [](const std::string& parallel, Interleave interleave) {
    MemoryFacts facts;
    set_division(facts, *parse_parallel(parallel), RankOrder::automatic, interleave, {});
    return facts.clock_microbatches;
  };
  EXPECT_EQ(at_once("pp=2,tp=2", Interleave::automatic), 2);
  EXPECT_EQ(at_once("tp=2", Interleave::always), 2);
  EXPECT_EQ(at_once("tp=2", Interleave::never), 1);
  EXPECT_EQ(at_once("pp=2", Interleave::automatic), 1);
  EXPECT_EQ(at_once("tp=2+dp=1", Interleave::automatic), 2) << "on those replicas that divide layers";
  EXPECT_EQ(at_once("tp=2,seq", Interleave::automatic), 1) << "these wait for every collective";
  EXPECT_EQ(at_once("tp=2,seq+tp=2", Interleave::automatic), 2);
}

}  // namespace
}  // namespace cotune
