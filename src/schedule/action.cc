#include "schedule/action.h"

#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "schedule/step_plan_json.h"

namespace cotune {
namespace {

constexpr std::array<std::pair<ActionKind, const char*>, 10> action_names = {{
    {ActionKind::forward, "forward"},
    {ActionKind::recompute, "recompute"},
    {ActionKind::backward, "backward"},
    {ActionKind::send_activation, "send_activation"},
    {ActionKind::receive_activation, "receive_activation"},
    {ActionKind::send_error, "send_error"},
    {ActionKind::receive_error, "receive_error"},
    {ActionKind::reduce_gradients, "reduce_gradients"},
    {ActionKind::optimizer_step, "optimizer_step"},
    {ActionKind::free, "free"},
}};

/// Calls visit(name, member) for every field but the kind.
template <typename ActionType, typename Visitor>
void visit_fields(ActionType& action, Visitor&& visit) {
  visit("hybrid_task", action.hybrid_task);
  visit("microbatch", action.microbatch);
  visit("job", action.job);
  visit("job_step", action.job_step);
  visit("first_layer", action.first_layer);
  visit("last_layer", action.last_layer);
  visit("stage", action.stage);
  visit("peer", action.peer);
  visit("bytes", action.bytes);
  visit("clock", action.clock);
}

ActionKind kind_from_json(const nlohmann::json& value) {
  for (const auto& [kind, name] : action_names) {
    if (value == name) return kind;
  }
  throw_user_error("action.kind: unknown kind {}", value.dump());
}

template <typename Integer>
Integer integer_from_json(const char* field, const nlohmann::json& value) {
  if (!value.is_number_integer() ||
      (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<Integer>::max())) ||
      (!value.is_number_unsigned() && value.get<int64_t>() < static_cast<int64_t>(std::numeric_limits<Integer>::min()))) {
    throw_user_error("action.{}: must be an integer of {} bits, got {}", field, 8 * sizeof(Integer), value.dump());
  }
  return value.get<Integer>();
}

}  // namespace

std::string to_string(ActionKind kind) {
  for (const auto& [known, name] : action_names) {
    if (known == kind) return name;
  }
  COTUNE_CHECK(false, "action kind {}", static_cast<int>(kind));
  return {};
}

nlohmann::ordered_json to_json(const Action& action) {
  nlohmann::ordered_json object;
  object["kind"] = to_string(action.kind);
  Action defaults;
  visit_fields(action, [&](const char* name, const auto& value) { object[name] = value; });
  visit_fields(defaults, [&](const char* name, const auto& value) {
    if (object[name] == value) object.erase(name);
  });
  return object;
}

Action action_from_json(const nlohmann::json& object) {
  if (!object.is_object()) throw_user_error("action: must be a JSON object, got {}", object.dump());
  if (!object.contains("kind")) throw_user_error("action.kind: is missing");
  Action action;
  action.kind = kind_from_json(object["kind"]);
  size_t known = 1;
  visit_fields(action, [&](const char* name, auto& member) {
    const auto found = object.find(name);
    if (found == object.end()) return;
    member = integer_from_json<std::remove_reference_t<decltype(member)>>(name, *found);
    ++known;
  });
  if (known == object.size()) return action;
  const nlohmann::ordered_json accepted = [] {
    nlohmann::ordered_json all;
    Action fields;
    visit_fields(fields, [&](const char* name, const auto&) { all[name] = 0; });
    return all;
  }();
  for (const auto& [key, value] : object.items()) {
    if (key != "kind" && !accepted.contains(key)) throw_user_error("action.{}: unknown key", key);
  }
  return action;
}

std::string to_json_line(const Action& action) { return to_json(action).dump(); }

Action action_from_json_line(const std::string& line) {
  const nlohmann::json object = nlohmann::json::parse(line, nullptr, false);
  if (object.is_discarded()) throw_user_error("action: not JSON: {}", line.substr(0, 200));
  return action_from_json(object);
}

}  // namespace cotune
