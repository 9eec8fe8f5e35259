/// One training example: tokens, and which of them are learned.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/text_encoder.h"

namespace cotune {

struct Example {
  std::vector<int32_t> tokens;
  std::vector<uint8_t> learned;  ///< learned[i] = 1: token i is a target, predicted from tokens before i; learned[0] = 0
  std::string source;            ///< file it came from
  int line = 0;                  ///< line there, from 1
  bool operator==(const Example&) const = default;
};

/// How learned text is marked.
enum class Marking {
  brackets,  ///< ⟦learned⟧
  colour,    ///< ANSI green, for terminals
};

/// The example as one text with the learned tokens marked, for people. Control characters but newline and tab are
/// written as \xHH, so that data cannot steer a terminal; parts of characters are U+FFFD.
std::string describe_example(const Example& example, const TextEncoder& encoder, Marking marking);

}  // namespace cotune
