#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "data/dataset.h"

namespace cotune {

/// An example as a question and the answer that is wanted: its last run of learned tokens, and all that stands before it.
struct LastAnswer {
  std::span<const int32_t> prompt, answer;
};

/// Nothing where no token stands before the answer. (Of plain text all tokens but the first are learned: what this gives then is no
/// question.) The spans are the data set's.
std::optional<LastAnswer> last_answer_of(const Dataset& data, int64_t example);

}  // namespace cotune
