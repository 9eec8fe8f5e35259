/// Whether a message of a record is to be learned, as the message says itself.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace cotune {

/// 0 or 1: `weight`, or the truth of `train` or `training`, as axolotl's message_field_training has them; nothing where the message, an
/// object, has none of them, or null. place: of the message in the record. Throws RecordError for other values, and for two that disagree.
std::optional<int> message_weight(const nlohmann::ordered_json& message, const std::string& place);

}  // namespace cotune
