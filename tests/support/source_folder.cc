#include "support/source_folder.h"

namespace cotune {

std::filesystem::path source_folder() { return COTUNE_SOURCE_DIR; }

}  // namespace cotune
