/// The messages of one rank of a pipeline: activations and errors between stages, with what travels on them about job steps.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "engine/emulated_device.h"
#include "engine/rank_progress.h"
#include "engine/sent_messages.h"
#include "schedule/action.h"
#include "schedule/pipeline/simulate.h"

namespace cotune {

/// A message as it is used. Both share the message's buffer.
struct Message {
  at::Tensor rows;     ///< [tokens, hidden], of an activation in the accumulation dtype, of an error in the compute dtype; tokens may be 0
  at::Tensor records;  ///< f64 [records, 2] (step_record in optimizer.h); on an emulated device one more
};

/// Posts receives, waits for what is used, and keeps what is sent until it has left. One per rank and run; not thread-safe.
///
/// A message is one buffer of bytes: the records, filled up to 64 bytes, then the rows. On an emulated device a last record says
/// when the message is there at the earliest, by the device's link: whichever is later counts, that or when it came.
class RankMessages {
 public:
  /// progress: told of waits; may be nullptr. clock: of an emulated device; nullptr: there is a real one.
  RankMessages(Communicator& communicator, int64_t hidden_size, at::ScalarType compute, at::Device device,
               RankProgress* progress = nullptr, EmulatedClock* clock = nullptr);

  /// action: receive_activation or receive_error. `tokens` 0: records alone.
  void post(const Action& action, int64_t tokens, int64_t records);

  /// Waits for a message of this rank whose receive was posted, and hands it out as often as it is asked for until release.
  const Message& wait(ActionKind kind, int32_t stage, int32_t microbatch);
  const Message& wait_for_norm(int32_t stage, int32_t job, int64_t job_step);
  /// Counts receives in the order in which they were posted, which is that in which the messages of one peer and kind come;
  /// nothing where none is posted.
  std::optional<int64_t> posted_as(ActionKind kind, int32_t stage, int32_t microbatch) const;
  void release(ActionKind kind, int32_t stage, int32_t microbatch);

  /// action: send_activation or send_error; index: its place in this rank's list. Copies both, rows in the dtype of Message::rows, and
  /// returns: at once, while at most one message before it in its channel has not left.
  void send(const Action& action, size_t index, const at::Tensor& rows, const at::Tensor& records);

  /// Waits until everything that was sent has left.
  void finish();

  /// Time spent in waits; by an emulated device, not by its host.
  double waited_s() const { return waited_s_; }
  const SentMessages& sent() const { return sent_; }
  /// Of those that have left, in no order: the place of each one's action, from when it was ready until it had arrived, in seconds of
  /// std::chrono::steady_clock; of an emulated device, in its own, from when its link was free. Complete after finish().
  const std::vector<SimulatedSpan>& sent_spans() const { return sent_spans_; }

 private:
  using Key = std::tuple<ActionKind, int32_t, int32_t, int32_t, int64_t>;  // kind of the receive, stage, microbatch, job, job step
  struct Leaving {
    std::shared_ptr<SendTransfer> transfer;
    SimulatedSpan span;  ///< without its end, but on an emulated device
  };
  struct Posted {
    Message message;
    std::shared_ptr<Transfer> transfer;
    int32_t peer = 0;
    int64_t number = 0;
  };

  at::ScalarType dtype_of(ActionKind kind) const;
  int64_t row_bytes(ActionKind kind, int64_t tokens) const;
  at::Tensor buffer_for(ActionKind kind, int64_t tokens, int64_t records) const;
  Message views_of(ActionKind kind, const at::Tensor& buffer, int64_t tokens, int64_t records) const;
  const Message& wait(const Key& key);
  void wait(Transfer& transfer, int32_t peer);
  void wait_until_left(Leaving& message, int32_t peer);
  /// When a message that is ready now is on the emulated device's link: from when it leaves until it is there.
  SimulatedSpan on_link(int32_t peer, int64_t bytes);

  Communicator& communicator_;
  int64_t hidden_size_;
  at::ScalarType compute_;
  at::Device device_;
  RankProgress* progress_;
  EmulatedClock* clock_;
  std::map<int32_t, double> link_free_s_;  ///< of an emulated device, by peer
  std::map<Key, Posted> posted_;
  int64_t post_count_ = 0;
  std::map<std::pair<int32_t, Channel>, std::deque<Leaving>> leaving_;  ///< by peer
  std::vector<SimulatedSpan> sent_spans_;
  SentMessages sent_;
  double waited_s_ = 0;
};

}  // namespace cotune
