/// Plans as JSON files. to_json and plan_from_json are inverse.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "plan/plan.h"

namespace cotune {

/// {"cotune_plan": 1, "planner": …, "model": hash, "cluster": hash, "profile": hash, "dtype", "jobs": [names],
///  "deployment", "sharing", "layout", "chunk_size", "order", "recompute",
///  "replicas": [{"tensor_parallel", "sequence_parallel", "token_budget", "longest_row", "shards", "least_microbatches",
///                "stages": [{"layers": [first, last + 1], "embedding", "head", "devices": [[nodes, node, device], …],
///                            "busy_s", "memory": {"weights", "adapters", "activations", "workspace"}}],
///                "hybrid_tasks": [[job, …]], "buckets": [[hybrid task, …]],
///                "rows": of every job [lengths of its rows of the typical step, ascending],
///                "microbatches", "tokens", "processed_tokens", "seconds", "bubble", "backward_ratio": [of a bucket, …]}],
///  "predicted": {"seconds", "exchange_s", "tokens", "processed_tokens", "device_seconds", "bubble", "idle",
///                "fullest_bytes", "cost": null where the cluster has no price}}
nlohmann::ordered_json to_json(const Plan& plan);
nlohmann::ordered_json to_json(const PredictedStep& step);

/// Reads it strictly: every key must be there and no other, in its type and range; layers must follow one
/// another from embedding to head, a device must be of one rank, jobs and hybrid tasks must be of the plan. Throws UserError naming file,
/// field, what was found and what is accepted. A "cost" of 0, which older versions wrote where there is no price, is read like null.
Plan plan_from_json(std::string_view text, const std::string& file_name);

/// The same from a file, which also need not be readable.
Plan read_plan(const std::string& file);

}  // namespace cotune
