#include "base/json_mistake.h"

#include <algorithm>

#include "base/error.h"

namespace cotune {

std::string json_reason(const nlohmann::json::exception& error) {
  constexpr int number_overflow = 406;
  if (error.id == number_overflow) return "a number is out of range";
  std::string_view reason = error.what();  // "[json.exception.parse_error.101] parse error at line 1, column 2: syntax error while … - unexpected …"
  if (const size_t tag = reason.find("] "); tag != std::string_view::npos) reason.remove_prefix(tag + 2);
  if (!reason.starts_with("parse error")) return std::string(reason);
  if (const size_t dash = reason.find(" - "); dash != std::string_view::npos) return std::string(reason.substr(dash + 3));
  if (const size_t place = reason.find(": "); place != std::string_view::npos) reason.remove_prefix(place + 2);
  return std::string(reason);
}

void throw_not_json(std::string_view file_name, std::string_view text, const nlohmann::json::exception& error) {
  const auto* parse_error = dynamic_cast<const nlohmann::json::parse_error*>(&error);
  if (parse_error == nullptr || parse_error->byte == 0) throw_user_error("{}: not JSON: {}", file_name, json_reason(error));
  const std::string_view before = text.substr(0, std::min(text.size(), parse_error->byte - 1));
  const size_t line_end = before.rfind('\n');
  throw_user_error("{}:{}: column {}: not JSON: {}", file_name, 1 + std::ranges::count(before, '\n'),
                   before.size() - (line_end == before.npos ? 0 : line_end + 1) + 1, json_reason(error));
}

nlohmann::json json_of_file(std::string_view text, std::string_view file_name) {
  try {
    return nlohmann::json::parse(text);
  } catch (const nlohmann::json::exception& error) {
    throw_not_json(file_name, text, error);
  }
}

}  // namespace cotune
