#include "plan/cost/replica_costs.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>

#include "model/config/tensor_shard.h"
#include "plan/cost/stage_prices.h"
#include "plan/shapes/replica_sizes.h"
#include "schedule/pipeline/message_bytes.h"
#include "schedule/sequence_parallel.h"

namespace cotune {
namespace {

/// What all candidates share.
struct Workload {
  ModelConfig model;
  std::vector<JobShape> jobs;
  std::vector<int32_t> all_jobs;
  std::vector<double> shares;  ///< of the tokens of a step, by job
};

/// A stage of a candidate.
struct CandidateStage {
  StageShape shape;
  const PricedStage* priced = nullptr;
};

class CandidateBuilder {
 public:
  CandidateBuilder(std::shared_ptr<const Workload> workload, const ClusterSpec& cluster, const NodeGroup& group,
                   const std::string& dtype, const ReplicaLimits& limits, const MeasuredTimes* measured)
      : workload_(std::move(workload)), cluster_(cluster), group_(group), dtype_(dtype), limits_(limits), measured_(measured) {}

  ReplicaCandidate build(int64_t tensor_parallel, bool is_sequence_parallel, int64_t pipeline_stages, int64_t shards) {
    ReplicaCandidate candidate;
    candidate.configuration.tensor_parallel = tensor_parallel;
    candidate.configuration.is_sequence_parallel = is_sequence_parallel;
    candidate.configuration.pipeline_stages = pipeline_stages;
    candidate.configuration.shards = shards;
    if (measured_ != nullptr && !measured_->is_of(tensor_parallel)) {
      candidate.reason = fmt::format("the profile was measured with tensor parallelism {}", measured_->tensor_parallel());
      return candidate;
    }
    const WeightSharding sharding{shards, limits_.gather_overlap};
    const StageMachine machine{group_.device, cluster_.link_of(group_, tensor_parallel), dtype_, measured_,
                               limits_.recompute};
    const LinkSpec between_stages = cluster_.link_of(group_, tensor_parallel * pipeline_stages);
    const std::shared_ptr<StagePrices> prices = prices_of(tensor_parallel, machine);
    std::vector<CandidateStage> stages;
    for (const StageShape& shape : even_stages(workload_->model, pipeline_stages, tensor_parallel, is_sequence_parallel)) {
      stages.push_back({shape, &prices->at(shape, prices->jobs_number(workload_->all_jobs))});
    }
    const LinkSpec between_copies = cluster_.link_of(group_, tensor_parallel * pipeline_stages * shards);
    find_chunk(stages, *prices, sharding, candidate);
    auto chunk_seconds = [workload = workload_, prices, stages = distinct(stages), machine, between_stages,
                                             sharding, between_copies](
                                                int64_t sequences, int64_t tokens) {
      const MicrobatchCounts counts = even_microbatch(sequences, tokens, workload->shares);
      double slowest = 0;
      for (const CandidateStage& stage : stages) {
        const StageSeconds alone = stage.priced->seconds(counts);
        slowest = std::max(slowest, with_gathered_weights(alone, workload->model, stage.shape, sharding, machine.element_size(),
                                                          between_copies).total());
      }
      if (stages.size() == 1) return slowest;
      // Activations forward, errors back; sent while the next chunk is computed.
      const int64_t sent = largest_slice(counts.tokens, stages.front().shape);
      const MessageBytes bytes = sent * token_bytes(workload->model.hidden_size, machine.element_size());
      return std::max(slowest, between_stages.seconds(static_cast<double>(bytes.activation)) +
                                   between_stages.seconds(static_cast<double>(bytes.error)));
    };
    candidate.chunk_s = chunk_seconds(1, std::max(chunk_step, candidate.configuration.chunk_tokens));
    candidate.configuration.chunk_seconds = std::move(chunk_seconds);
    return candidate;
  }

 private:
  /// The stages that can be the slowest: with the embedding, with the head, and the largest of the others.
  static std::vector<CandidateStage> distinct(const std::vector<CandidateStage>& stages) {
    std::vector<CandidateStage> kept = {stages.front()};
    if (stages.size() > 2) kept.push_back(stages[1]);
    if (stages.size() > 1) kept.push_back(stages.back());
    return kept;
  }

  std::shared_ptr<StagePrices> prices_of(int64_t tensor_parallel, const StageMachine& machine) {
    std::shared_ptr<StagePrices>& prices = prices_[tensor_parallel];
    if (prices == nullptr) prices = std::make_shared<StagePrices>(workload_->model, workload_->jobs, machine, false);
    return prices;
  }

  void find_chunk(const std::vector<CandidateStage>& stages, StagePrices& prices, const WeightSharding& sharding,
                  ReplicaCandidate& candidate) const {
    const int64_t limit = group_.device.usable_bytes();
    // Memory is affine in the tokens of a chunk up to the logits' cap: two points would do, but a search asks less.
    const auto most_that_fit = [&](int64_t most, const auto& fullest_of) {
      int64_t fits = 0, fails = most / chunk_step + 1;
      for (int64_t tried = fails - 1; fails - fits > 1; tried = (fits + fails) / 2) {
        (fullest_of(tried * chunk_step).memory.total() <= limit ? fits : fails) = tried;
      }
      return fits * chunk_step;
    };
    const auto with_chunks = [&](int64_t tokens) { return fullest(stages, prices, sharding, tokens); };
    const int64_t chunk = most_that_fit(limits_.most_chunk_tokens, with_chunks);
    candidate.configuration.chunk_tokens = chunk;
    const Fullest at = with_chunks(std::max(chunk_step, chunk));
    candidate.memory = candidate.row_memory = at.memory;
    if (chunk > 0) {
      const int64_t row_chunk = std::min(chunk, limits_.most_row_chunk_tokens);
      const auto with_row = [&](int64_t tokens) { return fullest_with_row(stages, prices, sharding, tokens, row_chunk); };
      candidate.configuration.longest_row = most_that_fit(std::max(limits_.most_chunk_tokens, limits_.most_row_tokens), with_row);
      candidate.row_memory = with_row(candidate.configuration.longest_row).memory;
    }
    if (chunk == 0) {
      candidate.overflow = at.memory.overflow(limit);
      candidate.reason = fmt::format("stage {} of {} needs {:.1f} GiB of {:.1f} for {} tokens; {} overflow by {:.1f}", at.stage + 1,
                                     stages.size(), gib(at.memory.total()), gib(limit), chunk_step, candidate.overflow.term,
                                     gib(candidate.overflow.bytes));
    }
  }

  static double gib(int64_t bytes) { return static_cast<double>(bytes) / static_cast<double>(int64_t{1} << 30); }

  struct Fullest {
    StageMemory memory;
    size_t stage = 0;
  };

  /// With chunks of so many tokens in flight.
  Fullest fullest(const std::vector<CandidateStage>& stages, StagePrices& prices, const WeightSharding& sharding, int64_t tokens) const {
    const MicrobatchCounts counts = even_microbatch(1, tokens, workload_->shares);
    return fullest_by(stages, prices, sharding, [&](size_t s, StageMemory& memory) {
      memory.activations = stages[s].priced->kept_bytes(counts) * static_cast<int64_t>(stages.size() - s);
      memory.workspace = stages[s].priced->workspace_bytes(counts);
    });
  }

  /// With one row of so many tokens, cut into chunks, and nothing else under way.
  Fullest fullest_with_row(const std::vector<CandidateStage>& stages, StagePrices& prices, const WeightSharding& sharding, int64_t tokens,
                           int64_t chunk) const {
    const MicrobatchCounts row = even_microbatch(1, tokens, workload_->shares);
    const MicrobatchCounts computed = even_microbatch(1, std::min(tokens, chunk), workload_->shares);
    return fullest_by(stages, prices, sharding, [&](size_t s, StageMemory& memory) {
      memory.activations = stages[s].priced->kept_bytes(row);
      if (tokens > chunk) memory.activations += chain_bytes(workload_->model, stages[s].shape, tokens, prices.machine().element_size());
      memory.workspace = stages[s].priced->workspace_bytes(computed);
    });
  }

  /// fill(s, memory) adds what stage s takes beside what is resident.
  template <typename Fill>
  Fullest fullest_by(const std::vector<CandidateStage>& stages, StagePrices& prices, const WeightSharding& sharding, const Fill& fill) const {
    Fullest most;
    for (size_t s = 0; s < stages.size(); ++s) {
      // Of the stages between the first and the last the first has most in flight.
      if (s > 1 && s + 1 < stages.size()) continue;
      StageMemory memory = prices.resident(stages[s].shape);
      fill(s, memory);
      memory = with_sharded_weights(memory, workload_->model, stages[s].shape, sharding, prices.machine());
      if (s == 0 || memory.total() > most.memory.total()) most = {memory, s};
    }
    return most;
  }

  std::shared_ptr<const Workload> workload_;
  const ClusterSpec& cluster_;
  const NodeGroup& group_;
  std::string dtype_;
  ReplicaLimits limits_;
  const MeasuredTimes* measured_;
  std::map<int64_t, std::shared_ptr<StagePrices>> prices_;  ///< by tensor parallelism
};

}  // namespace

std::vector<ReplicaCandidate> replica_candidates(const ModelConfig& model, const std::vector<JobShape>& jobs,
                                                 const ClusterSpec& cluster, const NodeGroup& group,
                                                 const std::string& dtype, const ReplicaLimits& limits,
                                                 const MeasuredTimes* measured) {
  auto workload = std::make_shared<Workload>();
  workload->model = model;
  workload->jobs = jobs;
  double tokens = 0;
  for (const JobShape& job : jobs) {
    workload->all_jobs.push_back(static_cast<int32_t>(workload->all_jobs.size()));
    workload->shares.push_back(static_cast<double>(job.batch_size) * job.lengths.mean());
    tokens += workload->shares.back();
  }
  for (double& share : workload->shares) share /= tokens;
  CandidateBuilder builder(workload, cluster, group, dtype, limits, measured);
  std::vector<ReplicaCandidate> candidates;
  const int64_t all = group.count * group.devices;
  for (int64_t tensor_parallel = 1; tensor_parallel <= std::min(all, model.head_count); ++tensor_parallel) {
    const bool is_wanted = limits.tensor_degrees.empty() || std::ranges::count(limits.tensor_degrees, tensor_parallel) > 0;
    if (!can_be_sharded(model, tensor_parallel) || !is_wanted) continue;
    for (int64_t stages = 1; stages <= model.layer_count; ++stages) {
      const int64_t devices = tensor_parallel * stages;
      if (devices > std::min(all, limits.most_devices)) break;
      const bool has_any_size = limits.pipeline_stages > 0 || limits.has_all_sizes;
      if (limits.pipeline_stages > 0 && stages != limits.pipeline_stages) continue;
      if (has_any_size ? !stands_on_nodes(group, devices) : !is_usual_size(group, tensor_parallel, stages)) continue;
      for (const bool is_sequence_parallel : {false, true}) {
        if (is_sequence_parallel && (tensor_parallel == 1 || !limits.may_be_sequence_parallel)) continue;
        for (int64_t shards = 1; shards <= limits.most_shards && shards * devices <= std::min(all, limits.most_devices); shards *= 2) {
          candidates.push_back(builder.build(tensor_parallel, is_sequence_parallel, stages, shards));
        }
      }
    }
  }
  return candidates;
}

}  // namespace cotune
