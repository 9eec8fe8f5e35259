#include "base/lfs_pointer.h"

#include "base/error.h"

namespace cotune {

void refuse_lfs_pointer(std::string_view bytes, std::string_view file_name) {
  if (!bytes.starts_with("version https://git-lfs.github.com/spec/")) return;
  throw_user_error("{}: is what Git LFS leaves in place of a file that it did not fetch; `git lfs pull` in that folder fetches it", file_name);
}

}  // namespace cotune
