#pragma once

#include <string>

namespace cotune {

/// A path with the user's home ($HOME) in place of a leading `~`, as shells have it where they see one; without $HOME as it is.
std::string with_home_folder(std::string path);

}  // namespace cotune
