/// Where a field stands in a JSON text.
#pragma once

#include <string_view>

namespace cotune {

/// The line, from 1, on which a field's value begins: `messages[2].role`, `conversations.NAME[0]`. json: well-formed, else any line.
/// Of a field that is not there, that of what should hold it.
int field_line(std::string_view json, std::string_view field);

}  // namespace cotune
