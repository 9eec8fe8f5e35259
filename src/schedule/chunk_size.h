/// How large the chunks of layout chunked are where nobody says (MuxTune §3.5; MX-24).
#pragma once

#include <cstdint>
#include <span>

namespace cotune {

/// What the rule does not go below: smaller chunks read keys and values again more often than the pads that they spare are worth. The paper's
/// number is lost; 64 is the chunk of its Fig. 20(a).
inline constexpr int64_t least_chunk_size = 64;

/// The greatest power of two that divides the padded length (the longest row) of every job and is at most `most`, such as the token
/// budget that a chunk must fit in; least_chunk_size where that is smaller. {64, 128, 256} → 64; {96, 160} → 32, lifted to 64.
/// At least one length, every length at least 1, and `most` at least least_chunk_size.
int64_t chunk_size_for(std::span<const int64_t> padded_lengths, int64_t most);

}  // namespace cotune
