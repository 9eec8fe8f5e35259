/// Bytes that grow with the tokens of a microbatch, exact also where a stage's ranks divide them (schedule/sequence_parallel.h).
#pragma once

#include <cstdint>
#include <functional>

namespace cotune {

/// T tokens take T·per_token + ⌈T / ranks⌉·per_slice_token.
struct BytesOfTokens {
  int64_t per_token = 0;        ///< of every token
  int64_t per_slice_token = 0;  ///< of the largest slice's; 0 of one rank
  int64_t of(int64_t tokens, int64_t ranks) const;
  BytesOfTokens& operator+=(const BytesOfTokens& other);
  bool operator==(const BytesOfTokens&) const = default;
};

/// Both parts of what is of that form. `bytes`: of so many tokens.
BytesOfTokens bytes_of_tokens(int64_t ranks, const std::function<int64_t(int64_t tokens)>& bytes);

/// A line through what two counts of layers take, at so many.
BytesOfTokens extrapolated(const BytesOfTokens& two_layers, const BytesOfTokens& three_layers, int64_t layers);

}  // namespace cotune
