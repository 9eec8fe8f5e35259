#include "plan/cost/bytes_of_tokens.h"

#include "schedule/sequence_parallel.h"

namespace cotune {

int64_t BytesOfTokens::of(int64_t tokens, int64_t ranks) const {
  return tokens * per_token + largest_slice(tokens, ranks) * per_slice_token;
}

BytesOfTokens& BytesOfTokens::operator+=(const BytesOfTokens& other) {
  per_token += other.per_token;
  per_slice_token += other.per_slice_token;
  return *this;
}

BytesOfTokens bytes_of_tokens(int64_t ranks, const std::function<int64_t(int64_t)>& bytes) {
  const int64_t one = bytes(1);
  if (ranks == 1) return {.per_token = one};
  const int64_t per_token = (bytes(ranks) - one) / (ranks - 1);  // one token more for every rank is none for the largest slice
  return {.per_token = per_token, .per_slice_token = one - per_token};
}

BytesOfTokens extrapolated(const BytesOfTokens& two_layers, const BytesOfTokens& three_layers, int64_t layers) {
  const auto at = [layers](int64_t two, int64_t three) { return two + (layers - 2) * (three - two); };
  return {at(two_layers.per_token, three_layers.per_token), at(two_layers.per_slice_token, three_layers.per_slice_token)};
}

}  // namespace cotune
