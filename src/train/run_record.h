#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "jobs/job.h"
#include "train/memory_relief.h"

namespace cotune {

/// What was done to a run's jobs while it went on (`cotune job`), by name: a resumed run keeps to it.
struct JobChanges {
  std::set<std::string> added;      ///< that the run's jobs file does not have
  std::set<std::string> paused, cancelled;
  std::map<std::string, int64_t> priorities;
  bool operator==(const JobChanges&) const = default;
};

/// What RUN/run.json says of a run: all that its results depend on, and how it is packed.
struct RunRecord {
  JobsFile configuration;                          ///< effective
  std::string model_fingerprint;                   ///< model/weights/model_files.h
  std::string compute_dtype;
  std::string launch;                              ///< Launching::name of what started the process that wrote it
  std::string emulated;                            ///< the file whose times stood in for a device; "": there was one
  std::string instruction_set;                     ///< of the products, or the name of the device: another one changes the last bits
  std::map<std::string, std::string> data_hashes;  ///< by job, of the tokenized examples
  std::map<std::string, std::map<std::string, std::string>> file_hashes;  ///< by job, of those of each of its files, as far as they are known
  /// By job, of the adapter that it starts from (adapter_checksum). Of a run that is to go on not of jobs that have a checkpoint: they
  /// need it no more.
  std::map<std::string, std::string> initial_adapters;
  int64_t memory_limit_bytes = 0;
  std::optional<MemoryRelief> relief;              ///< where the limit was reached
  JobChanges changes;

  std::string to_json() const;
  /// Throws UserError naming file and field.
  static RunRecord from_json(const std::string& text, const std::string& file_name);
};

/// RunRecord::launch in a run's record; "" where the file is none.
std::string recorded_launch(const std::filesystem::path& file);

/// Why a run cannot go on as `now`: a line for every difference that would change a result. Where model, data and initial adapters lie,
/// memory, sharing, token budget, recomputation, threads, priorities and save_steps may differ: none of them does. The
/// instruction set may too, so that a run can move to another machine; only equal bits are lost then. A sweep may have got further
/// candidates.
std::vector<std::string> differences(const RunRecord& before, const RunRecord& now);

}  // namespace cotune
