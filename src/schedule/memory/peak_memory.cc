#include "schedule/memory/peak_memory.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "schedule/evaluation_policy.h"
#include "schedule/memory/memory_shapes.h"
#include "schedule/memory/replica_memory.h"
#include "schedule/memory/resident_memory.h"
#include "schedule/memory/round_workspace.h"
#include "schedule/memory/saved_per_token.h"
#include "schedule/memory/weight_memory.h"
#include "schedule/memory/worst_case.h"
#include "schedule/sequence_parallel.h"

namespace cotune {
namespace {

/// The jobs as an evaluation has them.
std::vector<JobFootprint> of_held_out_rows(std::span<const JobFootprint> jobs) {
  std::vector<JobFootprint> held_out(jobs.begin(), jobs.end());
  for (JobFootprint& job : held_out) {
    job.row_count = job.eval_row_count;
    job.longest_row = job.longest_eval_row;
  }
  return held_out;
}

/// `tokens` tokens of all jobs, each job at most its batch, dearest first: the sum of their adapters' bytes.
int64_t dearest_mix(std::vector<std::pair<int64_t, int64_t>> bytes_and_tokens, int64_t tokens) {
  std::sort(bytes_and_tokens.rbegin(), bytes_and_tokens.rend());
  int64_t bytes = 0;
  for (const auto& [per_token, available] : bytes_and_tokens) {
    const int64_t taken = std::min(tokens, available);
    bytes += taken * per_token;
    tokens -= taken;
  }
  // The rows that round microbatches up belong to no job and carry nothing of adapters.
  return bytes;
}

/// What adapters of one job keep.
struct AdapterRows {
  int64_t bytes_per_token = 0, tokens = 0;
  int64_t of_one_rank = 1;  ///< so many times bytes_per_token for a row on one rank, which then has one in so many of all rows
};

/// A job's rows are not spread over the slices of the tokens: those of one rank may be its alone.
int64_t rows_that_one_rank_may_have(const JobFootprint& job, const MemoryFacts& facts) {
  const bool in_slices = std::ranges::any_of(job.adapters, [](const AdapterShape& adapter) { return adapts_slices(adapter.method); });
  return facts.is_sequence_parallel && parts_here(facts) == 1 && in_slices ? facts.tensor_parallel : 1;
}

/// The most that so many tokens of a microbatch keep.
int64_t dearest_rows(const std::vector<AdapterRows>& all, int64_t tokens) {
  std::map<int64_t, std::vector<std::pair<int64_t, int64_t>>> mixes;  // by of_one_rank
  for (const AdapterRows& rows : all) mixes[rows.of_one_rank].push_back({rows.bytes_per_token * rows.of_one_rank, rows.tokens});
  int64_t bytes = 0;
  for (const auto& [of_one_rank, mix] : mixes) bytes += dearest_mix(mix, divide_up(tokens, of_one_rank));
  return bytes;
}

}  // namespace

MemoryEstimate predict_rounds(const ModelConfig& config, std::span<const JobFootprint> all_jobs, const PackingPolicy& asked_policy,
                              const MemoryFacts& facts, RoundKind kind) {
  if (!facts.replicas.empty()) return predict_rounds_of_replicas(config, all_jobs, asked_policy, facts, kind);
  const bool evaluates = kind == RoundKind::evaluation;
  const PackingPolicy policy = evaluates ? evaluation_policy(asked_policy) : asked_policy;
  const std::vector<JobFootprint> jobs = evaluates ? of_held_out_rows(all_jobs) : std::vector<JobFootprint>(all_jobs.begin(), all_jobs.end());
  const int64_t e = facts.element_size, a = accumulation_size(facts);
  MemoryEstimate estimate;
  estimate.weights = facts.weight_bytes > 0 ? facts.weight_bytes : predict_weight_bytes(config, facts, positions_of(all_jobs));
  if (jobs.empty()) return estimate;

  SavedBytes saved_bytes_here(config, facts);
  std::vector<AdapterRows> model_mix, layer_mix;
  int64_t lowest_of_all = config.layer_count, reduced_gradients = 0;
  for (const JobFootprint& job : jobs) {
    const MemoryEstimate resident = resident_bytes(config, job, facts);
    estimate.adapters += resident.adapters;
    estimate.gradients += resident.gradients;
    estimate.optimizer += resident.optimizer;
    reduced_gradients = std::max(reduced_gradients, resident.gradients);
    const SavedPerToken saved = saved_bytes_here.by_adapters(job);
    const int64_t tokens = batch_tokens(job, policy, fuses(policy) ? longest_row(jobs) : job.longest_row);
    const int64_t rows_of_one = rows_that_one_rank_may_have(job, facts);
    model_mix.push_back({saved.model, tokens, rows_of_one});
    layer_mix.push_back({saved.layer, tokens, rows_of_one});
    lowest_of_all = std::min(lowest_of_all, lowest_layer(config, job));
  }

  const int64_t tensor = facts.tensor_parallel, parts = parts_here(facts), slices = facts.is_sequence_parallel ? tensor : 1;
  const int64_t key_value_size = parts * projection_size(config, Projection::k, tensor).out;
  const int64_t everything = round_tokens(jobs, policy);
  int64_t microbatch_tokens = 0;
  for (size_t i = 0; i < jobs.size(); ++i) {
    const WorstCase lead = lead_on_ranks(jobs, i, everything, policy, facts);
    const int64_t lowest = fuses(policy) ? lowest_of_all : lowest_layer(config, jobs[i]);
    const int64_t layers = layers_here(config, facts);
    const int64_t trained_layers = std::min(config.layer_count - lowest, layers);
    const SavedPerToken frozen = saved_bytes_here.by_model(lowest);
    const auto mix = [&](const std::vector<AdapterRows>& all, int64_t tokens) {
      return dearest_rows(fuses(policy) ? all : std::vector{all[i]}, tokens);
    };
    const int64_t of_a_layer = lead.microbatch_tokens * frozen.layer + mix(layer_mix, lead.microbatch_tokens);
    int64_t kept = lead.alive_tokens * frozen.model + mix(model_mix, lead.alive_tokens);
    if (policy.recompute) {
      kept = lead.alive_tokens * (trained_layers + 1) * divide_up(parts * config.hidden_size * a, slices) + of_a_layer;
    }
    if (evaluates) kept = (facts.process_stages.empty() ? facts.stages() : 1) * of_a_layer;
    estimate.activations = std::max(estimate.activations, kept);
    estimate.chain_kv =
        std::max(estimate.chain_kv, lead.chain_tokens * 2 * key_value_size *
                                        (layers * e + (evaluates ? 0 : trained_layers * a)));
    microbatch_tokens = std::max(microbatch_tokens, lead.microbatch_tokens);
  }
  const int64_t head_bytes = facts.head_workspace_bytes / 3 * 4;
  const int64_t head_rows = tensor * std::max<int64_t>(row_grid, head_bytes / (config.vocabulary_size * e));
  estimate.activations = facts.with_holes(estimate.activations);
  estimate.chain_kv = facts.with_holes(estimate.chain_kv);
  const int64_t ranks_here = facts.process_stages.empty() ? facts.ranks : 1;
  const int64_t neighbours = facts.process_stages.empty() ? facts.ranks - 1 : std::min<int64_t>(2, facts.stages() - 1);
  int64_t messages = 4 * neighbours * microbatch_tokens * config.hidden_size * (a + e);
  if (tensor > 1) messages += ranks_here * microbatch_tokens * config.hidden_size * (e + 2 * a) + reduced_gradients;
  if (facts.is_sequence_parallel) messages += ranks_here * microbatch_tokens * config.hidden_size * 2 * e;  // an error, and an input, of all rows
  estimate.workspace = facts.with_holes(
      ranks_here * (workspace_bytes(config, jobs, microbatch_tokens, policy, facts) + largest_forms(config, jobs, facts)) + messages);
  const bool widens_head = facts.product_block_bytes > 0 && !fits_panels(config.hidden_size, config.vocabulary_size);
  const int64_t logit_bytes = (facts.packed && !widens_head) || (facts.gpu_kernels && tensor == 1) ? e : e + 4 * a;
  estimate.logits = facts.with_holes(std::min(microbatch_tokens, head_rows) * divide_up(config.vocabulary_size, tensor / parts) * logit_bytes);
  return estimate;
}

MemoryEstimate at_worst_moment(const MemoryEstimate& training, const ModelConfig& config, std::span<const JobFootprint> jobs,
                               const PackingPolicy& policy, const MemoryFacts& facts) {
  MemoryEstimate worst = training;
  if (std::ranges::any_of(jobs, [](const JobFootprint& job) { return job.eval_row_count > 0; })) {
    const MemoryEstimate evaluation = predict_rounds(config, jobs, policy, facts, RoundKind::evaluation);
    if (evaluation.total() > worst.total()) worst = evaluation;
  }
  for (const JobFootprint& job : jobs) worst.files = std::max(worst.files, file_bytes(config, job, facts));
  return worst;
}

MemoryEstimate predict_memory(const ModelConfig& config, std::span<const JobFootprint> jobs,
                              const PackingPolicy& policy, const MemoryFacts& facts) {
  return at_worst_moment(predict_rounds(config, jobs, policy, facts, RoundKind::training), config, jobs, policy, facts);
}

}  // namespace cotune
