#pragma once

#include <cstdint>
#include <string_view>

namespace cotune {

/// usable_thread_count, where that is less with a line on standard error. option: that the user gave them by.
int64_t usable_threads(int64_t asked, std::string_view option);

}  // namespace cotune
