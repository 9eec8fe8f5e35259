#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "engine/backbone.h"

namespace cotune {

/// How many answers may be under way at once: by their number, and by the memory of their keys and values. Requests are numbered as a
/// RequestSource's are.
class AnswerPlaces {
 public:
  /// at_once: their number, whatever memory they take; 0: as many as bytes allow, at least one and at most 32.
  AnswerPlaces(const Backbone& model, int64_t at_once, int64_t bytes);

  /// tokens: of the prompt and the longest answer. No request begins that is far ahead of the oldest one under way: what waits for that
  /// one to end stays little.
  bool has_place(size_t request, int64_t tokens) const;
  void take(size_t request, int64_t tokens);
  void give_back(size_t request);
  size_t under_way() const { return tokens_.size(); }

 private:
  int64_t bytes_per_token_, longest_, places_, bytes_;
  std::map<size_t, int64_t> tokens_;
  int64_t all_tokens_ = 0;
};

}  // namespace cotune
