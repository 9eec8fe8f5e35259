/// Files that Git LFS did not fetch: in a clone made without it, a few lines of text stand in place of every large file.
#pragma once

#include <string_view>

namespace cotune {

/// Throws UserError where the file is such a text. bytes: all of the file, or its beginning.
void refuse_lfs_pointer(std::string_view bytes, std::string_view file_name);

}  // namespace cotune
