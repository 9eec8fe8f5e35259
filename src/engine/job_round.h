#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "adapter/adapter.h"
#include "engine/batch.h"

namespace cotune {

/// Settings of one optimizer step, resolved by the caller (schedule, warm-up).
struct OptimizerSettings {
  OptimizerKind kind = OptimizerKind::adamw;
  int64_t step = 1;  ///< counts from 1
  double learning_rate = 0;
  double weight_decay = 0;
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;
  double momentum = 0;
  double max_grad_norm = 0;  ///< 0: no clipping
};

/// What a round does for a job.
enum class RoundPurpose {
  train,     ///< forward, backward, optimizer step
  select,    ///< forward and backward with the method's selection (diff pruning); parameters stay
  evaluate,  ///< forward and loss
};

/// One job's part in a round: the caller owns adapter and batch, which must outlive the round. Results are written here.
struct JobRound {
  int32_t job = 0;  ///< as in BatchShape::job
  Adapter* adapter = nullptr;  ///< nullptr: the base model (evaluation)
  const Batch* batch = nullptr;
  RoundPurpose purpose = RoundPurpose::train;
  int64_t selection_pass = 0;  ///< purpose select: of which pass (Adapter::begin_selection); batch->step counts within it
  uint64_t dropout_key = 0;    ///< of (job seed, job step)
  OptimizerSettings optimizer;
  /// Where `batch` is one replica's share of the job's batch, which may be none of it: the labelled tokens of the whole.
  std::optional<int64_t> labelled_of_whole;

  bool emulated = false;        ///< out: time has passed, and nothing was computed: loss and norm are NaN, first choices say nothing
  double loss_sum = 0;          ///< out: Σ −log p over labelled tokens, f64, in descending atom order
  int64_t labelled_tokens = 0;  ///< out
  double gradient_norm = 0;     ///< out: before clipping
  bool stepped = false;         ///< out: the optimizer step was made
  std::string failure;          ///< out: why not, when loss, gradient or parameters are not finite; parameters are then
                                ///< those before the step, except after a non-finite parameter, which is beyond repair
  /// out, evaluation: per row of the batch, whether every learned token is the model's first choice (given the ones
  /// before it).
  std::vector<uint8_t> row_predicted;
  std::vector<double> row_loss_sums;  ///< out, evaluation: per row of the batch, Σ −log p over its labelled tokens
  double loss() const { return labelled_tokens > 0 || emulated ? loss_sum / static_cast<double>(labelled_tokens) : 0; }
};

}  // namespace cotune
