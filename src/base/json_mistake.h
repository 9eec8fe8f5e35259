/// What is wrong with JSON, in words for a user: the library's own have a tag and its terms of places.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace cotune {

/// `unexpected end of input; expected string literal`: an error without the library's tag and, where text could not be parsed, its place.
std::string json_reason(const nlohmann::json::exception& error);

/// Throws UserError `FILE:LINE: column N: not JSON: REASON`: columns are bytes, from 1. `FILE: not JSON: REASON` where the library does not
/// know the place. text: that could not be parsed.
[[noreturn]] void throw_not_json(std::string_view file_name, std::string_view text, const nlohmann::json::exception& error);

/// Text as JSON; throws as throw_not_json does.
nlohmann::json json_of_file(std::string_view text, std::string_view file_name);

}  // namespace cotune
