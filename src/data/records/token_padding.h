/// Padding of rows of token ids that were padded elsewhere: what `attention_mask` says beside `input_ids`.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>

namespace cotune {

/// Tokens [begin, end) of a row.
struct TokenRange {
  size_t begin = 0, end = 0;
};

/// Those of a record's `count` tokens that are no padding: all where it has no mask. Throws RecordError where the mask is no list of 0
/// and 1 of that length, has a 0 between two 1, or no 1 for any token.
TokenRange attended_tokens(const nlohmann::ordered_json& record, size_t count);

/// The record as it would be if it had never been padded: its lists of tokens and labels without padding, and no mask. For records in
/// which attended_tokens finds no mistake.
nlohmann::ordered_json without_padding(const nlohmann::ordered_json& record);

}  // namespace cotune
