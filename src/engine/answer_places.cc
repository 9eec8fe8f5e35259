#include "engine/answer_places.h"

#include <algorithm>
#include <limits>

#include "engine/generation.h"

namespace cotune {
namespace {

constexpr int64_t most_places = 32;
constexpr size_t places_ahead = 16;

}  // namespace

AnswerPlaces::AnswerPlaces(const Backbone& model, int64_t at_once, int64_t bytes)
    : bytes_per_token_(cached_bytes_per_token(model)),
      longest_(model.config().context_length),
      places_(at_once > 0 ? at_once : most_places),
      bytes_(at_once > 0 ? std::numeric_limits<int64_t>::max() : bytes) {}

bool AnswerPlaces::has_place(size_t request, int64_t tokens) const {
  if (tokens_.empty()) return true;
  const bool is_far_ahead = request - tokens_.begin()->first >= places_ahead * static_cast<size_t>(places_);
  if (is_far_ahead || static_cast<int64_t>(tokens_.size()) >= places_) return false;
  return (all_tokens_ + std::min(tokens, longest_)) * bytes_per_token_ <= bytes_;
}

void AnswerPlaces::take(size_t request, int64_t tokens) {
  tokens_[request] = std::min(tokens, longest_);
  all_tokens_ += tokens_[request];
}

void AnswerPlaces::give_back(size_t request) {
  const auto found = tokens_.find(request);
  all_tokens_ -= found->second;
  tokens_.erase(found);
}

}  // namespace cotune
