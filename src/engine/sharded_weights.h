/// Frozen weights that processes with copies of the same layers spread over them: each keeps a slice of every weight, and has the
/// whole of one only while it multiplies by it (what FSDP and ZeRO-3 do, for a backbone that never changes).
///
/// Nobody waits for anybody's step: weights are immutable, so a holder asks the others for their slices when it needs a weight, and a
/// thread for each other holder answers whenever it is asked, whatever its own process does meanwhile. While one weight is used the next
/// one comes: the one that was used after it the last time, in the same kind of action. Slices are of the bytes that kernels read, so a
/// gathered weight is equal to the bit to one that was never cut, and nothing is packed for it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "engine/rank_progress.h"
#include "ops/frozen_product.h"
#include "schedule/action.h"

namespace cotune {

/// A process among those that share one set of weights.
struct WeightHolder {
  int32_t index = 0;
  int32_t count = 1;
  bool is_alone() const { return count == 1; }
};

/// What one holder keeps, and how it gets the rest. One thread loads, joins, multiplies and leaves.
class ShardedWeights : public std::enable_shared_from_this<ShardedWeights> {
 public:
  explicit ShardedWeights(WeightHolder holder) : holder_(holder) {}
  ~ShardedWeights();
  ShardedWeights(const ShardedWeights&) = delete;
  ShardedWeights& operator=(const ShardedWeights&) = delete;

  // While the model is loaded: every holder keeps the same weights in the same order.
  /// Its slice of each form of a product. The result multiplies as the whole product does, by bytes that it gathers.
  std::shared_ptr<const FrozenProduct> keep(const FrozenProduct& whole, bool need_backward);
  /// Its rows of the embedding [rows, columns].
  void keep_rows(const at::Tensor& whole);

  /// All holders together, before anything is multiplied: `group` is of them, in their order, which has the ranks `ranks` of the run.
  /// From here on the others' questions are answered. progress: told of waits; may be nullptr.
  void join(std::unique_ptr<Communicator> group, std::vector<int32_t> ranks, std::shared_ptr<RankProgress> progress);
  /// Ends the group: when no holder multiplies any more, or where all is over.
  void leave() noexcept;

  /// What follows belongs to an action of this kind: the guess which weight comes next goes by it. Evaluations go through the head in
  /// another way than training.
  void begin_activity(ActionKind kind, bool evaluates) { activity_ = {kind, evaluates}; }
  /// Of the kept embedding: rows [n] (int64) → [n, columns]. Asks each holder for those that it has, once for each, embedding_rows_at_once
  /// at a time.
  at::Tensor rows(const at::Tensor& indices);
  bool has_rows() const { return row_count_ > 0; }

  /// Equal on two processes if and only if their slices are of the same forms.
  std::string forms() const;
  int64_t row_bytes() const;     ///< of its rows of the embedding
  int64_t bytes() const;         ///< of these and the slices
  int64_t whole_bytes() const;   ///< of what they are slices of
  int64_t buffer_bytes() const;  ///< of gathered weights, at most
  double waited_s() const { return waited_s_; }  ///< so far, for weights that had not come

 private:
  /// Bytes of a weight that one direction reads.
  struct Form {
    at::Tensor slice;   ///< bytes
    int64_t bytes = 0;  ///< of the whole
    ProductOutline outline;
    WeightForm direction = WeightForm::forward;
  };
  /// A weight that is whole here for a while, or on its way.
  struct Gathered {
    size_t form = 0;
    std::shared_ptr<const FrozenProduct> product;
    std::vector<std::shared_ptr<Transfer>> arrivals;
  };
  class SlicedProduct;

  size_t keep_form(const FrozenProduct& whole, WeightForm direction);
  const FrozenProduct& gathered(size_t form);
  Gathered ask_for(size_t form);
  void wait_for(Gathered& weight);
  void wait_for_answers(const std::vector<std::shared_ptr<Transfer>>& arrivals);
  void answer(int32_t peer) noexcept;
  at::Tensor answered_rows(const at::Tensor& indices) const;

  const WeightHolder holder_;
  std::vector<Form> forms_;
  at::Tensor rows_;        ///< this holder's
  int64_t row_count_ = 0;  ///< of the whole embedding

  std::unique_ptr<Communicator> group_;
  std::vector<int32_t> ranks_;  ///< of the other holders
  std::shared_ptr<RankProgress> progress_;
  std::vector<std::thread> answering_;

  using Activity = std::pair<ActionKind, bool>;
  Activity activity_;
  std::optional<Gathered> used_, next_;
  std::pair<Activity, size_t> used_in_;  ///< the activity in which used_ was used last, and it
  std::map<std::pair<Activity, size_t>, size_t> followed_by_;
  double waited_s_ = 0;
};

}  // namespace cotune
