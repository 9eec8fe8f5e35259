#pragma once

#include <string>
#include <string_view>

namespace cotune {

/// Any bytes as text that moves no cursor and changes no terminal: control characters but `\n` and tab as `\x1b`, those of U+0080 to U+009F as
/// `\u009b`, bytes that are no UTF-8 as `\xff`; all else as it is.
std::string visible_text(std::string_view bytes);

}  // namespace cotune
