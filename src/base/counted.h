#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace cotune {

/// `1 round`, `2 rounds`. noun: may have words before it, `training round`; plural: where it is not the noun with an s.
std::string counted(int64_t count, std::string_view noun, std::string_view plural = "");

}  // namespace cotune
