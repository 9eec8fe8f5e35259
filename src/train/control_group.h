/// The memory that the control groups of a process (cgroups, versions 1 and 2) still allow it.
#pragma once

#include <cstdint>
#include <filesystem>

namespace cotune {

/// The least, over this process's memory control group and all that it lies in, of the group's limit less what it uses;
/// files that it read and the kernel may drop at will (inactive_file) are not in use. The largest int64 where no group
/// has a limit, never below 0.
///
/// Reads, below `root`: proc/self/cgroup for the group; sys/fs/cgroup or sys/fs/cgroup/unified (version 2: memory.max,
/// memory.current); sys/fs/cgroup/memory (version 1: memory.limit_in_bytes, memory.usage_in_bytes); memory.stat of both.
/// Groups that cannot be seen from inside a container are passed over. root: `/` but in tests.
int64_t control_group_allowance_bytes(const std::filesystem::path& root = "/");

}  // namespace cotune
