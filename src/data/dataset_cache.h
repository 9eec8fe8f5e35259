/// The folder of tokenized data: what a job trains on is tokenized once, and mapped from then on (dataset_file.h).
///
/// A set is found by a key: a checksum of what its examples depend on, and of nothing else. These are the bytes of every data file;
/// format, max_length (with the model's context length), truncation, train_on_prompt, special_tokens, max_examples and eval_fraction; the
/// tokenizer and its end-of-text token; the chat template in force and its special tokens; and `reading_version`. Names, places and weights of
/// files, seeds, batch sizes and adapters are none of them: jobs that differ in these share one file, and one mapping in a process.
///
/// FOLDER/KEY.tokens is a set; its modification time is when it was used last. A file is written under a temporary name, and moved to
/// its own when it is whole: readers never see half of one, and of two processes that write the same one, the last to be done wins.
/// Removing a file that a run has mapped takes nothing from that run.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "data/dataset_file.h"
#include "data/dataset_reader.h"
#include "data/records/data_file_hash.h"

namespace cotune {

/// Of what reading makes of equal files, under equal options: raised with every change of it, or old sets would be taken for new ones.
inline constexpr int reading_version = 7;

/// file_hashes: of train's files and of eval, in their order, as far as they are given.
std::string dataset_key(const DataRequest& request, const std::vector<std::string>& file_hashes);

/// $XDG_CACHE_HOME/cotune/data or ~/.cache/cotune/data; empty where the environment gives neither.
std::filesystem::path default_dataset_cache();

/// A set in the folder, for people.
struct CachedSet {
  std::filesystem::path file;
  int64_t bytes = 0;
  std::chrono::system_clock::time_point last_used;
  int64_t examples = 0, tokens = 0;     ///< 0 where the file cannot be read
  std::vector<std::string> original_paths;
  std::string damage;                   ///< why it cannot be read
};

/// Those of a folder, the latest used first; of one that does not exist, none.
std::vector<CachedSet> cached_sets(const std::filesystem::path& folder);

/// What writers have left in the folder, or are writing now.
struct UnfinishedSets {
  int64_t count = 0, bytes = 0;
};
UnfinishedSets unfinished_sets(const std::filesystem::path& folder);

/// Removes sets, and what unfinished writers and hashes of files have left. Returns the bytes that were freed. Throws SystemError.
int64_t clear_dataset_cache(const std::filesystem::path& folder);

/// May be used by several threads.
class DatasetCache {
 public:
  /// most_bytes: what the folder may hold; the set that was written last stays in any case. notice: a line for people: a damaged set,
  /// a folder that cannot be written.
  DatasetCache(std::filesystem::path folder, int64_t most_bytes, std::function<void(const std::string&)> notice);

  /// What read_job_data gives, mistakes and all: mapped where the set is there or can be written, else in memory. Nothing with
  /// mistakes is kept.
  JobData read(const DataRequest& request, Diagnostics& diagnostics, const ReadingOptions& options = {});

  const std::filesystem::path& folder() const { return folder_; }

 private:
  std::shared_ptr<const DatasetFile> find(const std::string& key, size_t file_count);
  std::shared_ptr<const DatasetFile> write(const std::string& key, const DataRequest& request, const std::vector<HashedFile>& files,
                                           Diagnostics& diagnostics, const ReadingOptions& options);
  void make_room(const std::filesystem::path& kept);

  std::filesystem::path folder_;
  int64_t most_bytes_;
  std::function<void(const std::string&)> notice_;
  std::mutex mutex_;
  std::map<std::string, std::weak_ptr<const DatasetFile>> open_;  ///< by key
  std::set<std::string> unopened_;                                ///< keys of sets that are there and cannot be opened
  bool can_write_ = true;
};

}  // namespace cotune
