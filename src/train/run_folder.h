#pragma once

#include <filesystem>
#include <optional>
#include <vector>

#include "base/diagnostics.h"
#include "train/run_record.h"

namespace cotune {

/// A run's folder, held by one process at a time: RUN/lock is locked while this lives, and by nothing
/// afterwards, however the process ends. What taking the folder made (the lock, the folder and those above it) is removed
/// again where the run has not begun.
class RunFolder {
 public:
  enum class Start { fresh, resume, overwrite };

  /// Takes the folder and changes nothing in it but the lock. Start::fresh and overwrite make it where it is
  /// not there. Throws UserError: another process holds it (named), it holds a run or jobs already (fresh) or
  /// no run (resume), it cannot be made or written to; SystemError where the disk is full.
  RunFolder(std::filesystem::path path, Start start);
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  /// What would refuse a start in this folder, without a change to anything: another process, a run that is
  /// there or is not, a folder that cannot be made or written to, by the rights, links and file systems on its way. Adds to `mistakes`.
  static void look(const std::filesystem::path& path, Start start, Diagnostics& mistakes);

  /// What begin() removes of an earlier run in the folder where it is to be overwritten, with all that is below.
  static std::vector<std::filesystem::path> removed_by_overwrite(const std::filesystem::path& folder);

  /// What is removed again unless the run begins, in that order: files, and folders where they are empty. For a program
  /// that ends without destructors.
  std::vector<std::filesystem::path> made() const;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path job_folder(const std::string& name) const { return path_ / "jobs" / name; }
  std::filesystem::path metrics_file() const { return path_ / "metrics.jsonl"; }
  std::filesystem::path sweeps_folder() const { return path_ / "sweeps"; }
  std::filesystem::path tensorboard_folder() const { return path_ / "tensorboard"; }

  /// The run that the folder holds; nothing unless it was taken to resume. Throws UserError when run.json is
  /// damaged.
  std::optional<RunRecord> record() const;

  /// The first change: removes the old run's jobs and what TensorBoard reads of it (overwrite), what interrupted writes left, and the old
  /// summary, then writes run.json. Throws UserError, before that, where a job's folder names a checkpoint that
  /// is not there; SystemError.
  void begin(const RunRecord& record);
  /// Throws SystemError where the folder was removed or moved since it was taken: what is at its path now is not this run's.
  void check_is_ours() const;
  /// run.json again: the run has learned something that a resumed one needs. Throws SystemError.
  void update(const RunRecord& record);
  void write_summary(const std::string& json);
  /// What begin() removed of a run that is resumed; "": it had none.
  const std::string& earlier_summary() const { return earlier_summary_; }

 private:
  void lock();
  void undo() noexcept;

  std::filesystem::path path_;
  Start start_;
  std::vector<std::filesystem::path> made_folders_;  ///< that were not there, outermost first
  std::string earlier_summary_;
  bool made_lock_ = false, begun_ = false;
  int lock_ = -1;
};

/// Beside a run's output folder, where one of its jobs is trained again: `runs/latest-sql` of `runs/latest/` and `sql`.
std::string output_beside(const std::string& run_output, const std::string& name);

}  // namespace cotune
