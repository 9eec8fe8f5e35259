#include "data/records/message_weight.h"

#include <fmt/format.h>

#include "data/records/record_error.h"

namespace cotune {
namespace {

using nlohmann::ordered_json;

int number_of(const ordered_json& weight, const std::string& field) {
  if (!weight.is_number() || (weight != 0 && weight != 1)) throw RecordError(field, fmt::format("expected 0 or 1, found {}", type_of(weight)));
  return weight == 0 ? 0 : 1;
}

int truth_of(const ordered_json& train, const std::string& field) {
  if (!train.is_boolean()) throw RecordError(field, fmt::format("expected true or false, found {}", type_of(train)));
  return train.get<bool>() ? 1 : 0;
}

}  // namespace

std::optional<int> message_weight(const ordered_json& message, const std::string& place) {
  std::optional<int> weight;
  std::string said;  // by an earlier key
  for (const char* key : {"weight", "train", "training"}) {
    const auto found = message.find(key);
    if (found == message.end() || found->is_null()) continue;
    const std::string field = fmt::format("{}.{}", place, key);
    const int own = key == std::string_view("weight") ? number_of(*found, field) : truth_of(*found, field);
    if (weight && *weight != own) {
      throw RecordError(field, fmt::format("expected {} beside {}, found {}", *weight == 1 ? "true" : "false", said, found->dump()));
    }
    weight = own;
    said = fmt::format("{} {}", key, found->dump());
  }
  return weight;
}

}  // namespace cotune
