/// The prompt that Stanford Alpaca was trained on.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace cotune {

/// Of {instruction, input?}, with a newline behind its "### Response:". Throws RecordError.
std::string alpaca_prompt(const nlohmann::ordered_json& record);

}  // namespace cotune
