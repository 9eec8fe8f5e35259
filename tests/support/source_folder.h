#pragma once

#include <filesystem>

namespace cotune {

/// The root of the source tree that this program was built from, where committed data lie. A function, so that its one source alone
/// depends on where that is: all others are the same text in every clone, and a compiler's cache knows them.
std::filesystem::path source_folder();

}  // namespace cotune
