#pragma once

#include <span>
#include <vector>

#include "jobs/parallel.h"
#include "model/config/model_config.h"
#include "plan/shapes/weight_forms.h"
#include "schedule/memory/memory_facts.h"
#include "schedule/pipeline/rank_plan.h"

namespace cotune {

/// What each rank of a pipeline takes, as if its stages were one: as many layers from its first one on.
std::vector<StageShape> shapes_of_ranks(const PipelineLayout& layout);

/// What frozen weights take of the process that is this rank of these replicas.
int64_t weight_bytes_of_rank(const ModelConfig& config, std::span<const PipelineLayout> layouts, int32_t rank, const WeightForms& forms);

/// What predictions of memory know of how the model is divided. process_layouts: of the replicas, where ranks are processes; else none.
void set_division(MemoryFacts& facts, const Parallel& parallel, RankOrder order, Interleave interleave,
                  std::span<const PipelineLayout> process_layouts);

/// The same facts as if each rank of these replicas were a process.
void set_process_stages(MemoryFacts& facts, std::span<const PipelineLayout> layouts);

/// The same facts for the process that is this rank of a replica's pipeline, in place of the dearest one; other replicas count as if they
/// were alike. weight_bytes: that its weights take.
MemoryFacts facts_of_rank(MemoryFacts facts, size_t replica, size_t place, int64_t weight_bytes);

}  // namespace cotune
