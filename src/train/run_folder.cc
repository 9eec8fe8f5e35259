#include "train/run_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <system_error>
#include <map>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/file.h"
#include "train/checkpoint.h"
#include "train/metrics_file.h"

namespace cotune {
namespace {

namespace fs = std::filesystem;

/// What keeps a folder from being taken: a full disk is the machine's, all else the user's choice of the folder.
[[noreturn]] void refuse_place(const std::string& message, const std::error_code& reason) {
  if (reason == std::errc::no_space_on_device || reason == std::errc::io_error || reason.value() == EDQUOT) throw SystemError(message);
  throw UserError(message);
}

void make_folders(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) refuse_place(fmt::format("{}: cannot create the folder: {}", folder.string(), error.message()), error);
}

/// The folder and those above it that are not there, outermost first.
std::vector<fs::path> missing_folders(const fs::path& folder) {
  std::vector<fs::path> missing;
  std::error_code unknown;
  for (fs::path place = fs::absolute(folder).lexically_normal();
       !fs::exists(fs::symlink_status(place, unknown)) && place.has_relative_path(); place = place.parent_path()) {
    if (place.has_filename()) missing.insert(missing.begin(), place);
  }
  return missing;
}

struct OpenLock {
  int descriptor = -1;
  bool made = false;
};

OpenLock open_lock(const fs::path& file) {
  // Made by one process alone, which may remove it again.
  if (const int made = ::open(file.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644); made >= 0) return {made, true};
  const int descriptor = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (descriptor < 0) {
    const std::error_code reason(errno, std::generic_category());
    refuse_place(fmt::format("{}: cannot be written: {}", file.string(), reason.message()), reason);
  }
  return {descriptor, false};
}

/// Whether the path still names the open file: its holder may have removed it meanwhile.
bool still_names(const fs::path& file, int descriptor) {
  struct stat open_file{}, named{};
  return ::fstat(descriptor, &open_file) == 0 && ::stat(file.c_str(), &named) == 0 &&
         open_file.st_dev == named.st_dev && open_file.st_ino == named.st_ino;
}

void remove_or_throw(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) throw SystemError(fmt::format("{}: cannot remove: {}", path.string(), error.message()));
}

/// What the holder of the lock wrote into it: its process id.
std::string holder(int descriptor) {
  char text[32] = {};
  const ssize_t count = ::pread(descriptor, text, sizeof text - 1, 0);
  const std::string pid(text, count > 0 ? static_cast<size_t>(count) : 0);
  const bool number = !pid.empty() && pid.find_first_not_of("0123456789\n") == std::string::npos;
  return number ? "process " + pid.substr(0, pid.find('\n')) : "another process";
}

std::string no_run(const fs::path& folder) {
  return folder.string() + ": holds no run to resume";
}

std::string another_run(const fs::path& folder) {
  return folder.string() +
         ": holds a run already: pass --resume to go on with it, --overwrite to start again, or choose "
         "another --output-dir";
}

std::string another_process(const fs::path& folder, int lock) {
  return fmt::format(
      "{}: {} is training in this folder: wait until it has ended, or choose another --output-dir",
      folder.string(), holder(lock));
}

/// Something that a run would write over or `--overwrite` remove, where no run.json says that a run made it; "" where there is nothing.
std::string leftover(const fs::path& folder) {
  std::vector<fs::path> places = RunFolder::removed_by_overwrite(folder);
  places.push_back(folder / "metrics.jsonl");
  for (const fs::path& place : places) {
    std::error_code unknown;
    if (!fs::exists(place, unknown) || (fs::is_directory(place, unknown) && fs::is_empty(place, unknown))) continue;
    return fmt::format("{}: is there, but {} is not: pass --overwrite to remove it, or choose another --output-dir",
                       place.string(), (folder / "run.json").string());
  }
  return "";
}

/// Whether the folder is the system's own account of itself, in which nobody makes files, though access() may not say so.
bool is_view_of_system(const fs::path& folder) {
  constexpr std::array<uint32_t, 10> views{PROC_SUPER_MAGIC,   SYSFS_MAGIC,        DEBUGFS_MAGIC,       TRACEFS_MAGIC,      SECURITYFS_MAGIC,
                                           CGROUP_SUPER_MAGIC, CGROUP2_SUPER_MAGIC, DEVPTS_SUPER_MAGIC, PSTOREFS_MAGIC, BPF_FS_MAGIC};
  struct statfs found{};
  return ::statfs(folder.c_str(), &found) == 0 && std::ranges::count(views, static_cast<uint32_t>(found.f_type)) > 0;
}

/// Why files cannot be made in a folder that is there; "" where they can.
std::string obstacle_within(const fs::path& folder) {
  if (::access(folder.c_str(), W_OK | X_OK) != 0) return std::strerror(errno);
  return is_view_of_system(folder) ? "the system keeps it, and no files can be made in it" : "";
}

/// Why the folder cannot be made or written to; "" where it can.
std::string obstacle(const fs::path& folder) {
  fs::path place = fs::absolute(folder);
  if (!place.has_filename()) place = place.parent_path();  // a link with a slash behind it is not seen as one
  const fs::path asked = place;
  std::error_code error;
  while (!fs::exists(place, error) && place.has_relative_path()) {
    if (error && error != std::errc::not_a_directory)
      return fmt::format("{}: {}", place.string(), error.message());
    if (fs::is_symlink(place, error)) {
      return fmt::format("{}: is a symbolic link to {}, which is not there", place.string(), fs::read_symlink(place, error).string());
    }
    place = place.parent_path();
  }
  if (!fs::is_directory(place, error)) return fmt::format("{}: is not a folder", place.string());
  const std::string reason = obstacle_within(place);
  if (reason.empty()) return "";
  if (place == asked) return fmt::format("{}: cannot be written to: {}", folder.string(), reason);
  return fmt::format("{}: cannot be made: {}: {}", folder.string(), place.string(), reason);
}

/// Why its lock cannot be taken by anybody; "" where it can, or is not there.
std::string obstacle_at_lock(const fs::path& folder) {
  const fs::path lock = folder / "lock";
  std::error_code unknown;
  if (!fs::exists(lock, unknown)) return "";
  if (!fs::is_regular_file(lock, unknown)) return fmt::format("{}: is no file: a run keeps its lock there", lock.string());
  return ::access(lock.c_str(), R_OK | W_OK) == 0 ? "" : fmt::format("{}: cannot be written: {}", lock.string(), std::strerror(errno));
}

}  // namespace

void RunFolder::look(const fs::path& path, Start start, Diagnostics& mistakes) {
  const auto add = [&](const std::string& text) { mistakes.add("", 0, "", text); };
  for (const auto& looked_for : {obstacle, obstacle_at_lock}) {
    if (const std::string reason = looked_for(path); !reason.empty()) return add(reason);
  }
  const fs::path run_file = path / "run.json";
  if (const int lock = ::open((path / "lock").c_str(), O_RDONLY | O_CLOEXEC); lock >= 0) {
    const bool held = ::flock(lock, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    if (held) add(another_process(path, lock));
    ::close(lock);
    if (held) return;
  }
  const bool has_run = fs::exists(run_file);
  if (start == Start::resume && !has_run) add(no_run(path));
  if (start != Start::fresh) return;
  if (has_run) return add(another_run(path));
  if (const std::string found = leftover(path); !found.empty()) add(found);
}

RunFolder::RunFolder(fs::path path, Start start) : path_(std::move(path)), start_(start) {
  const fs::path run_file = path_ / "run.json";
  if (start_ == Start::resume && !fs::exists(run_file)) throw UserError(no_run(path_));
  made_folders_ = missing_folders(path_);
  try {
    make_folders(path_);
    lock();
    if (start_ == Start::fresh) {
      const std::string found = fs::exists(run_file) ? another_run(path_) : leftover(path_);
      if (!found.empty()) throw UserError(found);
    }
  } catch (...) {
    undo();
    throw;
  }
}

RunFolder::~RunFolder() { undo(); }

std::vector<fs::path> RunFolder::made() const {
  std::vector<fs::path> made;
  if (begun_) return made;
  if (made_lock_) made.push_back(path_ / "lock");
  if (start_ == Start::fresh && lock_ >= 0) made.push_back(path_ / "jobs");
  made.insert(made.end(), made_folders_.rbegin(), made_folders_.rend());
  return made;
}

void RunFolder::undo() noexcept {
  std::error_code ignored;  // what is left does no harm
  for (const fs::path& path : made()) fs::remove(path, ignored);  // a folder only where it is empty
  if (lock_ >= 0) ::close(lock_);  // not before: until then nobody else holds what is removed
}

void RunFolder::lock() {
  const fs::path file = path_ / "lock";
  while (lock_ < 0) {
    const OpenLock opened = open_lock(file);
    if (::flock(opened.descriptor, LOCK_EX | LOCK_NB) != 0) {
      const int reason = errno;
      const std::string holder = another_process(path_, opened.descriptor);
      ::close(opened.descriptor);
      if (reason == EWOULDBLOCK) throw UserError(holder);
      throw SystemError(fmt::format("{}: cannot be locked: {}", file.string(), std::strerror(reason)));
    }
    if (still_names(file, opened.descriptor)) {
      lock_ = opened.descriptor;
      made_lock_ = opened.made;
    } else {  // its holder has removed it meanwhile
      ::close(opened.descriptor);
      make_folders(path_);
    }
  }
  const std::string pid = fmt::format("{}\n", ::getpid());
  if (::ftruncate(lock_, 0) != 0 || ::pwrite(lock_, pid.data(), pid.size(), 0) < 0) {
    throw SystemError(fmt::format("{}: cannot be written: {}", file.string(), std::strerror(errno)));
  }
}

std::vector<fs::path> RunFolder::removed_by_overwrite(const fs::path& folder) {
  return {folder / "jobs", folder / "sweeps", folder / "tensorboard", folder / "summary.json"};
}

std::optional<RunRecord> RunFolder::record() const {
  if (start_ != Start::resume) return std::nullopt;
  const fs::path file = path_ / "run.json";
  return RunRecord::from_json(read_file(file), file.string());
}

void RunFolder::begin(const RunRecord& record) {
  if (start_ != Start::overwrite) {
    for (const JobSpec& job : record.configuration.jobs) check_checkpoints(job_folder(job.name));
  }
  // The summary first: it says that a run has ended. run.json last: until it is written, the folder holds the old run.
  const fs::path summary = path_ / "summary.json";
  if (start_ == Start::resume && fs::exists(summary)) earlier_summary_ = read_file(summary);
  remove_or_throw(summary);
  if (start_ == Start::overwrite) {
    for (const fs::path& old : removed_by_overwrite(path_)) remove_or_throw(old);
  }
  make_folders(path_ / "jobs");
  std::optional<std::map<std::string, NotedProgress>> noted;
  for (const JobSpec& job : record.configuration.jobs) {
    remove_leftovers(job_folder(job.name), keeps_best(job.train), [&] {
      if (!noted) noted = noted_progress(metrics_file());
      return (*noted)[job.name].newest_step;
    });
  }
  std::vector<fs::path> unfinished;
  const auto look_in = [&unfinished](const auto& entries) {
    for (const fs::directory_entry& entry : entries) {
      if (is_temporary_file(entry.path())) unfinished.push_back(entry.path());
    }
  };
  look_in(fs::directory_iterator(path_));
  if (fs::is_directory(sweeps_folder())) look_in(fs::recursive_directory_iterator(sweeps_folder()));
  for (const fs::path& file : unfinished) remove_or_throw(file);
  write_file_atomically(path_ / "run.json", record.to_json());
  begun_ = true;
}

void RunFolder::check_is_ours() const {
  if (still_names(path_ / "lock", lock_)) return;
  throw SystemError(fmt::format("{}: was removed or moved while this run trained in it; nothing more is written there", path_.string()));
}

void RunFolder::update(const RunRecord& record) {
  check_is_ours();
  write_file_atomically(path_ / "run.json", record.to_json());
}

void RunFolder::write_summary(const std::string& json) {
  check_is_ours();
  write_file_atomically(path_ / "summary.json", json + "\n");
}

std::string output_beside(const std::string& run_output, const std::string& name) {
  fs::path folder = fs::path(run_output).lexically_normal();
  if (!folder.has_filename()) folder = folder.parent_path();
  folder += "-" + name;
  return folder.string();
}

}  // namespace cotune
