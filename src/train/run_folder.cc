#include "train/run_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/file.h"
#include "train/checkpoint.h"

namespace cotune {
namespace {

namespace fs = std::filesystem;

void make_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error)
    throw SystemError(fmt::format("{}: cannot create the folder: {}", folder.string(), error.message()));
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

std::string leftover_jobs(const fs::path& jobs, const fs::path& run_file) {
  return fmt::format(
      "{}: is there, but {} is not: pass --overwrite to remove it, or choose another --output-dir",
      jobs.string(), run_file.string());
}

bool holds_jobs(const fs::path& folder) {
  std::error_code unknown;
  return fs::exists(folder / "jobs", unknown) && !fs::is_empty(folder / "jobs", unknown);
}

/// Why the folder cannot be made or written to; "" where it can.
std::string obstacle(const fs::path& folder) {
  fs::path place = fs::absolute(folder);
  std::error_code error;
  while (!fs::exists(place, error) && place.has_relative_path()) {
    if (error && error != std::errc::not_a_directory)
      return fmt::format("{}: {}", place.string(), error.message());
    place = place.parent_path();
  }
  if (!fs::is_directory(place, error)) return fmt::format("{}: is not a folder", place.string());
  if (::access(place.c_str(), W_OK | X_OK) == 0) return "";
  const char* reason = std::strerror(errno);
  if (place == fs::absolute(folder))
    return fmt::format("{}: cannot be written to: {}", folder.string(), reason);
  return fmt::format("{}: cannot be made: {}: {}", folder.string(), place.string(), reason);
}

}  // namespace

void RunFolder::look(const fs::path& path, Start start, Diagnostics& mistakes) {
  const auto add = [&](const std::string& text) { mistakes.add("", 0, "", text); };
  if (const std::string reason = obstacle(path); !reason.empty()) return add(reason);
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
  if (holds_jobs(path)) add(leftover_jobs(path / "jobs", run_file));
}

RunFolder::RunFolder(fs::path path, Start start) : path_(std::move(path)), start_(start) {
  const fs::path run_file = path_ / "run.json";
  if (start_ == Start::resume && !fs::exists(run_file)) throw UserError(no_run(path_));
  make_folder(path_);
  lock();
  if (start_ == Start::fresh && (fs::exists(run_file) || holds_jobs(path_))) {
    ::close(lock_);
    throw UserError(fs::exists(run_file) ? another_run(path_) : leftover_jobs(path_ / "jobs", run_file));
  }
}

RunFolder::~RunFolder() {
  if (lock_ >= 0) ::close(lock_);
}

void RunFolder::lock() {
  const fs::path file = path_ / "lock";
  lock_ = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (lock_ < 0)
    throw SystemError(fmt::format("{}: cannot be written: {}", file.string(), std::strerror(errno)));
  try {
    if (::flock(lock_, LOCK_EX | LOCK_NB) != 0) {
      if (errno == EWOULDBLOCK) throw UserError(another_process(path_, lock_));
      throw SystemError(fmt::format("{}: cannot be locked: {}", file.string(), std::strerror(errno)));
    }
    const std::string pid = fmt::format("{}\n", ::getpid());
    if (::ftruncate(lock_, 0) != 0 || ::pwrite(lock_, pid.data(), pid.size(), 0) < 0) {
      throw SystemError(fmt::format("{}: cannot be written: {}", file.string(), std::strerror(errno)));
    }
  } catch (...) {
    ::close(lock_);
    throw;
  }
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
  remove_or_throw(path_ / "summary.json");
  if (start_ == Start::overwrite) remove_or_throw(path_ / "jobs");
  make_folder(path_ / "jobs");
  for (const JobSpec& job : record.configuration.jobs) remove_leftovers(job_folder(job.name));
  std::vector<fs::path> unfinished;
  for (const fs::directory_entry& entry : fs::directory_iterator(path_)) {
    if (is_temporary_file(entry.path())) unfinished.push_back(entry.path());
  }
  for (const fs::path& file : unfinished) remove_or_throw(file);
  write_file_atomically(path_ / "run.json", record.to_json());
}

void RunFolder::update(const RunRecord& record) {
  write_file_atomically(path_ / "run.json", record.to_json());
}

void RunFolder::write_summary(const std::string& json) {
  write_file_atomically(path_ / "summary.json", json + "\n");
}

}  // namespace cotune
