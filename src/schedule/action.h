/// What a rank does, one step at a time. An action list is data: generated, verified, simulated and interpreted.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace cotune {

enum class ActionKind {
  forward,             ///< the forward operators of a microbatch on this model chunk
  recompute,           ///< forward of one layer again, from its kept input, before that layer's backward
  backward,            ///< the backward operators of a microbatch, or of one layer of it
  send_activation,
  receive_activation,
  send_error,
  receive_error,
  reduce_gradients,
  optimizer_step,
  free,                ///< the microbatch's activations (and, at a chain's end, its keys and values)
};

/// The way of errors: a backward, and what is sent for one.
constexpr bool goes_down(ActionKind kind) {
  return kind == ActionKind::backward || kind == ActionKind::recompute || kind == ActionKind::send_error || kind == ActionKind::receive_error;
}

/// One action. Fields that a kind does not use stay at their defaults.
///
/// Messages go through channels, one FIFO per ordered pair of ranks and kind (activation, error). `receive` posts: it
/// gives a buffer, and the rank goes on; what uses the message waits for it. A send completes only when its receive is
/// posted. A message with microbatch -1 brings the squared gradient norm of job and job_step (pipeline_work.h).
///
/// Ranges of forward, recompute and backward, in layers of the model, which has L:
///   -1, -1   all of the stage: forward = embedding and every layer; backward = head, then every layer, top first
///   l, m     layers l … m-1 alone (l < m), without embedding and head
///   L, L     backward: the head alone (final norm, logits, loss and their gradient)
///   0, 0     forward: the embedding alone
/// Layers below the lowest adapter of the microbatch's jobs have no backward: the operator list leaves them out, and
/// layer-wise backward actions end above them.
struct Action {
  ActionKind kind = ActionKind::forward;
  int32_t hybrid_task = 0;
  int32_t microbatch = -1;   ///< index into StepPlan::microbatches
  int32_t job = -1;          ///< reduce_gradients, optimizer_step
  int64_t job_step = -1;
  int32_t first_layer = -1;  ///< forward, recompute, backward: see above
  int32_t last_layer = -1;
  int32_t stage = 0;         ///< the stage, of those of the pipeline; messages: the one that uses what is sent
  int32_t peer = -1;         ///< messages: the other rank
  int64_t bytes = 0;         ///< messages
  /// forward, backward: of the microbatches of RankPlan::clocks[clock] side by side (pipeline/clocks.h); microbatch is the first
  /// of them that the stage takes in this direction.
  int32_t clock = -1;
  bool operator==(const Action&) const = default;
};

/// The enumerator's name: `optimizer_step`.
std::string to_string(ActionKind kind);

/// One JSON object on one line; fields at their defaults are left out.
std::string to_json_line(const Action& action);
/// The inverse. Throws UserError naming the field when the line is not an action: not a JSON object, an unknown kind or
/// key, a value that is no integer of the field's range.
Action action_from_json_line(const std::string& line);

}  // namespace cotune
