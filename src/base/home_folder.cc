#include "base/home_folder.h"

#include <cstdlib>

namespace cotune {

std::string with_home_folder(std::string path) {
  const char* home = std::getenv("HOME");
  if (home != nullptr && (path == "~" || path.starts_with("~/"))) path.replace(0, 1, home);
  return path;
}

}  // namespace cotune
