#include "data/records/token_padding.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "data/records/record_error.h"

namespace cotune {
namespace {

using nlohmann::ordered_json;

constexpr const char* mask_field = "attention_mask";

std::string field_of(size_t index) { return fmt::format("{}[{}]", mask_field, index); }

}  // namespace

TokenRange attended_tokens(const ordered_json& record, size_t count) {
  const auto mask = record.find(mask_field);
  if (mask == record.end() || mask->is_null()) return {0, count};
  if (!mask->is_array()) throw RecordError(mask_field, fmt::format("expected a list of 0 and 1, found {}", type_of(*mask)));
  if (mask->size() != count) {
    throw RecordError(mask_field, fmt::format("expected as many as input_ids ({}), found {}", count, mask->size()));
  }
  TokenRange range{count, count};
  for (size_t i = 0; i < count; ++i) {
    const ordered_json& value = (*mask)[i];
    if (!value.is_number_integer() || (value != 0 && value != 1)) {
      throw RecordError(field_of(i), fmt::format("expected 0 or 1, found {}", value.is_number() ? value.dump() : type_of(value)));
    }
    if (value == 0) continue;
    if (range.begin < count && range.end != i) {
      throw RecordError(field_of(range.end), "expected 1, found 0 between two 1: padding stands at the ends");
    }
    range = {std::min(range.begin, i), i + 1};
  }
  if (count > 0 && range.begin == count) throw RecordError(mask_field, "expected at least one 1, found 0 alone");
  return range;
}

ordered_json without_padding(const ordered_json& record) {
  ordered_json bare = record;
  const TokenRange kept = attended_tokens(record, record.at("input_ids").size());
  for (const char* field : {"input_ids", "labels"}) {
    ordered_json list = ordered_json::array();
    const auto begin = record.at(field).begin();
    std::copy(begin + static_cast<std::ptrdiff_t>(kept.begin), begin + static_cast<std::ptrdiff_t>(kept.end), std::back_inserter(list));
    bare[field] = std::move(list);
  }
  bare.erase(mask_field);
  return bare;
}

}  // namespace cotune
