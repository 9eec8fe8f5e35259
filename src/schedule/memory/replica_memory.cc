#include "schedule/memory/replica_memory.h"

#include <algorithm>

#include "schedule/memory/peak_memory.h"
#include "schedule/memory/resident_memory.h"
#include "schedule/memory/weight_memory.h"
#include "schedule/memory/worst_case.h"

namespace cotune {
namespace {

MemoryFacts facts_of(const MemoryFacts::Replica& replica, const MemoryFacts& facts) {
  MemoryFacts own = facts;
  own.replicas.clear();
  own.ranks = replica.ranks;
  own.tensor_parallel = replica.tensor_parallel;
  own.is_sequence_parallel = replica.is_sequence_parallel;
  own.process_stages = replica.process_stages;
  if (replica.process_stages.empty()) own.attention_threads = facts.attention_threads * replica.ranks / facts.ranks;
  if (replica.tensor_parallel == 1 || replica.is_sequence_parallel) own.clock_microbatches = 1;
  return own;
}

void add(const MemoryEstimate& more, MemoryEstimate& estimate) {
  estimate.adapters += more.adapters;
  estimate.gradients += more.gradients;
  estimate.optimizer += more.optimizer;
}

/// Of a process: what resident_bytes counts, and, where layers are not divided, the first process's copy of what it steps.
MemoryEstimate resident_of_process(const ModelConfig& config, const JobFootprint& job, const MemoryFacts::Replica& replica,
                                   const MemoryFacts& facts) {
  MemoryEstimate all = resident_bytes(config, job, facts_of(replica, facts));
  if (replica.tensor_parallel > 1) return all;
  JobFootprint own = job;
  const StageShape& first = replica.process_stages.front();
  std::erase_if(own.adapters, [&](const AdapterShape& adapter) { return adapter.layer < first.first_layer || adapter.layer >= first.last_layer; });
  add(resident_bytes(config, own, facts_of({}, facts)), all);
  return all;
}

/// Of one process, buffers of an exchange: what it gives and what comes back; of the share that it owns, what it takes, the sum and what
/// it sends back (engine/gradient_exchange.h).
int64_t exchange_bytes_of_process(int64_t gradients, int64_t givers, int64_t holders) {
  return 2 * gradients + (givers + holders - 1) * gradients / givers;
}

/// Of all replicas in one process.
int64_t exchange_bytes(int64_t gradients, int64_t givers, int64_t holders) {
  return (2 * (givers - 1) + 1 + 2 * (holders - 1)) * gradients;
}

MemoryEstimate predict_dearest_process(const ModelConfig& config, std::span<const JobFootprint> jobs, const PackingPolicy& policy,
                                       const MemoryFacts& facts, RoundKind kind, int64_t exchanged) {
  MemoryEstimate dearest;
  for (const MemoryFacts::Replica& replica : facts.replicas) {
    MemoryEstimate own = predict_rounds(config, jobs, policy, facts_of(replica, facts), kind);
    own.adapters = own.gradients = own.optimizer = 0;
    for (const JobFootprint& job : jobs) add(resident_of_process(config, job, replica, facts), own);
    own.workspace += exchanged;
    if (own.total() > dearest.total()) dearest = own;
  }
  return dearest;
}

MemoryEstimate predict_one_process(const ModelConfig& config, std::span<const JobFootprint> jobs, const PackingPolicy& policy,
                                   const MemoryFacts& facts, RoundKind kind, int64_t exchanged) {
  MemoryEstimate all;
  all.weights = facts.weight_bytes > 0 ? facts.weight_bytes : predict_weight_bytes(config, facts, positions_of(jobs));
  for (const JobFootprint& job : jobs) add(resident_bytes_of_replicas(config, job, facts), all);
  for (const MemoryFacts::Replica& replica : facts.replicas) {
    const MemoryEstimate own = predict_rounds(config, jobs, policy, facts_of(replica, facts), kind);
    all.activations += own.activations;
    all.chain_kv += own.chain_kv;
    all.workspace += own.workspace;
    all.logits += own.logits;
  }
  all.workspace += exchanged;
  return all;
}

}  // namespace

MemoryEstimate resident_bytes_of_replicas(const ModelConfig& config, const JobFootprint& job, const MemoryFacts& facts) {
  if (facts.ranks_are_processes()) {
    MemoryEstimate dearest;
    for (const MemoryFacts::Replica& replica : facts.replicas) {
      const MemoryEstimate own = resident_of_process(config, job, replica, facts);
      if (own.total() > dearest.total()) dearest = own;
    }
    return dearest;
  }
  const MemoryEstimate whole = resident_bytes(config, job, facts_of({}, facts));
  MemoryEstimate all = whole;
  for (const MemoryFacts::Replica& replica : facts.replicas) {
    add(resident_bytes(config, job, facts_of(replica, facts)), all);
    if (replica.tensor_parallel == 1) continue;
    all.adapters -= whole.adapters;  // of one that divides layers it counts the whole, too
    all.gradients -= whole.gradients;
    all.optimizer -= whole.optimizer;
  }
  return all;
}

MemoryEstimate predict_rounds_of_replicas(const ModelConfig& config, std::span<const JobFootprint> jobs, const PackingPolicy& policy,
                                          const MemoryFacts& facts, RoundKind kind) {
  int64_t largest = 0, holders = 0;  // of a value that no rank's part leaves out
  for (const JobFootprint& job : jobs) largest = std::max(largest, resident_bytes(config, job, facts_of({}, facts)).gradients);
  for (const MemoryFacts::Replica& replica : facts.replicas) holders += replica.tensor_parallel;
  const auto givers = static_cast<int64_t>(facts.replicas.size());
  if (facts.ranks_are_processes()) {
    return predict_dearest_process(config, jobs, policy, facts, kind, facts.with_holes(exchange_bytes_of_process(largest, givers, holders)));
  }
  return predict_one_process(config, jobs, policy, facts, kind, facts.with_holes(exchange_bytes(largest, givers, holders)));
}

WorstCase worst_case_of_replicas(const ModelConfig& config, std::span<const JobFootprint> jobs, const PackingPolicy& policy,
                                 const MemoryFacts& facts, int64_t everything) {
  const bool are_processes = facts.ranks_are_processes();
  WorstCase worst;
  for (const MemoryFacts::Replica& replica : facts.replicas) {
    const WorstCase own = worst_case_on_ranks(config, jobs, policy, facts_of(replica, facts));
    const auto take = [&](int64_t WorstCase::*kind) {
      worst.*kind = are_processes ? std::max(worst.*kind, own.*kind) : worst.*kind + own.*kind;
    };
    take(&WorstCase::microbatch_tokens);
    take(&WorstCase::alive_tokens);
    take(&WorstCase::chain_tokens);
  }
  const bool may_pad_rows_anew = policy.layout == Layout::padded && worst.chain_tokens > 0;
  if (!are_processes && !may_pad_rows_anew) worst.alive_tokens = std::min(worst.alive_tokens, everything);
  return worst;
}

}  // namespace cotune
