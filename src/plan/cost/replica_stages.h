/// Layers of a replica's stages, by how long they take.
#pragma once

#include <vector>

#include "plan/cost/stage_prices.h"
#include "plan/cost/weight_sharding.h"
#include "plan/shapes/job_shape.h"

namespace cotune {

/// Stages whose slowest one is as fast as it can be for a chunk of `chunk_tokens` tokens shared out among the
/// jobs (partition_stages over layers; the embedding counts with the first, the head with the last).
/// even_stages where that is as fast, or where under 1F1B (S − s chunks in flight) a stage of the faster cut
/// exceeds `memory_limit`, its weights sharded so.
/// `prices`: of the model, the jobs and the machine. is_sequence_parallel: StageShape's, of every stage; layers are priced so.
std::vector<StageShape> balanced_stages(const ModelConfig& model, const std::vector<JobShape>& jobs,
                                        int64_t stages, int64_t tensor_parallel, int64_t chunk_tokens,
                                        StagePrices& prices, int64_t memory_limit,
                                        const WeightSharding& sharding = {}, bool is_sequence_parallel = false);

}  // namespace cotune
