/// Losses on held-out examples of many adapters in one pass: the evaluation of training, row by row.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "adapter/adapter.h"
#include "data/dataset.h"
#include "engine/backbone.h"

namespace cotune {

/// An adapter (nullptr: the model alone) and examples to try it on. Both must outlive the evaluation.
struct EvaluationPair {
  Adapter* adapter = nullptr;
  const Dataset* data = nullptr;
};

/// By example. Where the model's output is not finite the loss is not, and all_right is NaN.
struct ExampleLosses {
  std::vector<double> loss_sums;    ///< Σ −ln p over learned tokens
  std::vector<double> token_counts; ///< learned
  std::vector<double> all_right;    ///< 1 where each learned token is the model's first choice, given those before it
};

struct EvaluationCallbacks {
  /// Rows of all pairs that are done, of how many.
  std::function<void(int64_t done, int64_t all)> on_progress{};
  /// Asked after every microbatch's operator; true ends the evaluation.
  std::function<bool()> interrupted{};
};

/// The losses of each pair. Examples of several adapters share microbatches of at most token_budget tokens; examples are in memory once,
/// whatever the number of adapters. An example's loss depends on its own tokens and its adapter alone. Nothing where it was interrupted.
/// The backbone becomes ready for rows as long as the longest example. Throws MemoryLimitExceeded.
std::optional<std::vector<ExampleLosses>> held_out_losses(const std::shared_ptr<Backbone>& backbone, std::span<const EvaluationPair> pairs,
                                                          const EvaluationCallbacks& callbacks = {}, int64_t token_budget = 1024);

}  // namespace cotune
