/// The two sizes of what goes between stages.
#pragma once

#include <cstdint>

#include "schedule/action.h"
#include "schedule/operator_cost.h"
#include "schedule/operators.h"

namespace cotune {

/// Of a token, or of a microbatch. The residual stream goes up in the accumulation dtype, so that where layers are cut changes no bit;
/// its gradient, which every layer rounds to the compute dtype, goes down in that.
struct MessageBytes {
  int64_t activation = 0;
  int64_t error = 0;

  /// What a forward or a backward uses, or a message of this kind is.
  constexpr int64_t of(ActionKind kind) const { return goes_down(kind) ? error : activation; }
  constexpr int64_t sum() const { return activation + error; }
  constexpr MessageBytes& operator+=(const MessageBytes& other) {
    activation += other.activation;
    error += other.error;
    return *this;
  }
  bool operator==(const MessageBytes&) const = default;
};

constexpr MessageBytes operator*(int64_t tokens, const MessageBytes& each) { return {tokens * each.activation, tokens * each.error}; }

/// element_size: of the compute dtype.
constexpr MessageBytes token_bytes(int64_t hidden_size, int64_t element_size) {
  return {hidden_size * accumulation_bytes(element_size), hidden_size * element_size};
}

}  // namespace cotune
