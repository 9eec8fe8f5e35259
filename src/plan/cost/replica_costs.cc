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

constexpr int64_t chunk_step = 64;

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

  ReplicaCandidate build(int64_t tensor_parallel, bool divides_tokens, int64_t pipeline_stages, int64_t shards) {
    ReplicaCandidate candidate;
    candidate.configuration.tensor_parallel = tensor_parallel;
    candidate.configuration.divides_tokens = divides_tokens;
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
    for (const StageShape& shape : even_stages(workload_->model, pipeline_stages, tensor_parallel, divides_tokens)) {
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
    const auto most_that_fit = [&](bool is_alone) {
      // Memory is affine in the tokens of a chunk up to the logits' cap: two points would do, but a search asks less.
      const int64_t most = limits_.most_chunk_tokens / chunk_step;
      int64_t fits = 0, fails = most + 1;
      for (int64_t tried = most; fails - fits > 1; tried = (fits + fails) / 2) {
        (fullest(stages, prices, sharding, tried * chunk_step, is_alone).memory.total() <= limit ? fits : fails) = tried;
      }
      return fits;
    };
    const int64_t fits = most_that_fit(false);
    candidate.configuration.chunk_tokens = fits * chunk_step;
    const Fullest at = fullest(stages, prices, sharding, std::max<int64_t>(1, fits) * chunk_step, false);
    candidate.memory = candidate.row_memory = at.memory;
    if (fits > 0 && stages.size() > 1) {
      candidate.configuration.longest_row = most_that_fit(true) * chunk_step;
      candidate.row_memory = fullest(stages, prices, sharding, candidate.configuration.longest_row, true).memory;
    }
    if (fits == 0) {
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

  /// With chunks of so many tokens in flight, or one alone.
  Fullest fullest(const std::vector<CandidateStage>& stages, StagePrices& prices, const WeightSharding& sharding,
                  int64_t tokens, bool is_alone) const {
    const MicrobatchCounts counts = even_microbatch(1, tokens, workload_->shares);
    Fullest most;
    for (size_t s = 0; s < stages.size(); ++s) {
      // Of the stages between the first and the last the first has most in flight.
      if (s > 1 && s + 1 < stages.size()) continue;
      const auto in_flight = is_alone ? 1 : static_cast<int64_t>(stages.size() - s);
      const auto& [shape, priced] = stages[s];
      StageMemory memory = prices.resident(shape);
      memory.activations = priced->kept_bytes(counts) * in_flight;
      memory.workspace = priced->workspace_bytes(counts);
      memory = with_sharded_weights(memory, workload_->model, shape, sharding, prices.machine());
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
      if (limits.pipeline_stages > 0 ? stages != limits.pipeline_stages || !stands_on_nodes(group, devices)
                                     : !is_usual_size(group, tensor_parallel, stages)) {
        continue;
      }
      for (const bool divides_tokens : {false, true}) {
        if (divides_tokens && (tensor_parallel == 1 || !limits.may_divide_tokens)) continue;
        for (int64_t shards = 1; shards <= limits.most_shards && shards * devices <= std::min(all, limits.most_devices); shards *= 2) {
          candidates.push_back(builder.build(tensor_parallel, divides_tokens, stages, shards));
        }
      }
    }
  }
  return candidates;
}

}  // namespace cotune
