/// The explicit activation record of one microbatch: everything an operator reads or writes. Nothing else is kept
/// between two operators.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <tuple>
#include <vector>

#include "adapter/adapter.h"
#include "engine/job_round.h"
#include "engine/tensor_group.h"
#include "ops/attention.h"
#include "schedule/microbatch.h"
#include "schedule/operators.h"

namespace cotune {

/// What one layer keeps from forward for backward.
struct LayerRecord {
  at::Tensor stream;         ///< [tokens, hidden] before the layer; kept where the layer is to be recomputed, from one to the next
  at::Tensor input;          ///< the same in compute dtype, for backward
  at::Tensor attention_inverse_rms, mlp_inverse_rms;  ///< [tokens]
  at::Tensor qkv;            ///< [tokens, qkv columns], rotated
  AttentionResult attention;
  at::Tensor middle;         ///< [tokens, hidden] the stream after the attention block, in compute dtype
  at::Tensor gate_up;        ///< [tokens, 2·intermediate]
  std::vector<std::array<SiteRecord, projection_count>> sites;  ///< per job of the microbatch

  /// Bytes of the distinct tensors above.
  int64_t bytes() const;
};

/// Keys and values of a chain: one cache per layer.
using ChainLayers = std::vector<ChainCache>;
/// Of the chains that are on their way forward, by job, step and row. Each microbatch keeps those it has part of until its own
/// backward; from the last chunk's forward on nobody else does.
using ChainCaches = std::map<std::tuple<int32_t, int64_t, int32_t>, std::shared_ptr<ChainLayers>>;

/// The tokens of a microbatch that each rank of a group has between products.
struct TokenSlices {
  std::vector<int64_t> tokens;    ///< where each rank's begin, and behind them where the last one's end
  std::vector<int64_t> scored;    ///< the same of the scored rows
  RowRange own, own_scored;
  std::vector<JobRows> job_rows;  ///< of each job: its rows here, counted from the slice's first
};

struct MicrobatchState {
  std::vector<JobRound*> jobs;        ///< with rows here, in row order
  std::vector<JobRows> job_rows;
  at::Tensor tokens;                  ///< int64 [tokens]
  at::Tensor positions;               ///< int32 [tokens]
  at::Tensor example_keys;            ///< int64 [tokens]
  std::vector<AttentionSegment> segments;          ///< chain pointers are set per layer
  at::Tensor segment_begins;          ///< int32 [segments + 1]: where each begins and the last one ends; undefined on the CPU
  std::vector<std::shared_ptr<ChainLayers>> segment_chains;  ///< per segment; nullptr: a whole row

  at::Tensor scored_rows;             ///< int64 [scored]: rows that predict a learned token, and pads, which count for nothing
  at::Tensor labels;                  ///< int32 [scored]; of a pad 0
  at::Tensor row_scale;               ///< accumulation dtype [scored]: 1 / labelled tokens of the job's batch; of a pad 0
  std::vector<std::pair<JobRound*, int32_t>> label_rows;  ///< per scored row: its job and row of the batch; of a pad nullptr
  struct LossSpan {
    size_t job;                       ///< index into jobs
    int64_t begin, end;               ///< of scored rows, no pads; in layout ragged one per atom, else per segment; last first
  };
  std::vector<LossSpan> loss_spans;
  at::Tensor losses;                  ///< accumulation dtype [scored]: by the head, unscaled
  at::Tensor wrong;                   ///< bool [scored]: by loss_head, where the first choice is another token

  MicrobatchCounts counts;            ///< where the device is emulated: what times depend on
  std::vector<LayerRecord> layers;    ///< by the layers' own indices; those below the stage stay empty
  at::Tensor hidden;                  ///< the residual stream [tokens, hidden], accumulation dtype: in bf16 its roundings would be most of the error
  at::Tensor x;                       ///< running input of the next product
  at::Tensor final_hidden;            ///< the last layer's output, kept for the head, accumulation dtype
  at::Tensor d_hidden;                ///< running gradient of the residual stream, compute dtype
  at::Tensor d_x, d_qkv, d_gate_up, activated;  ///< running gradients within a layer

  /// Where ranks divide the tokens between products (schedule/sequence_parallel.h). There `hidden`, `input`, `middle`, `final_hidden`,
  /// `d_hidden`, the norms' 1/rms and what bottlenecks keep are of this rank's slice, and so is d_x behind a sum; the rest is of all
  /// tokens.
  std::optional<TokenSlices> slices;
  at::Tensor whole_error;             ///< [tokens, hidden]: the gradient of a product's output, gathered
  at::Tensor whole_input;             ///< [tokens, hidden]: a product's input, gathered again for adapter gradients

  /// Of the operator before the cut, where ranks divide layers: what its group does together, and what becomes of the result.
  struct Communication {
    GroupCollective started;
    std::function<void(const at::Tensor& result)> complete;
  };
  std::optional<Communication> communication;

  int64_t token_count() const { return tokens.size(0); }
};

/// Builds the inputs of a microbatch. layout: of its plan; padded splits each atom of job_rows into runs that do not depend on
/// how many pads the neighbours demand. rounds: by job id. Chains get their caches in `chains` (created at the first
/// chunk, sized for the whole row, one for each of the stage's layers, at the layer's own index; the last chunk takes them out).
/// shard: whose slice of the tokens `slices` are of, where its group divides them.
MicrobatchState make_microbatch_state(const Microbatch& microbatch, Layout layout, const std::map<int32_t, JobRound*>& rounds, ChainCaches& chains,
                                      LayerRange layers, const AttentionShape& attention, at::ScalarType compute, at::Device device,
                                      const TensorShard& shard = {});

}  // namespace cotune
