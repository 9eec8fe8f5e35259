#include "data/dataset_cache.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/file.h"
#include "jobs/enum_names.h"

namespace cotune {
namespace {

namespace fs = std::filesystem;

constexpr const char* set_suffix = ".tokens";

bool is_set(const fs::path& path) { return path.extension() == set_suffix && is_checksum(path.stem().string()); }

bool is_unfinished(const fs::path& path) { return is_temporary_of(path, is_set); }

/// Of the folder, as far as it can be read.
std::vector<fs::path> files_in(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) files.push_back(entry->path());
  return files;
}

struct SetFile {
  fs::path path;
  int64_t bytes = 0;
  timespec last_used{};
};

/// The latest used first.
std::vector<SetFile> set_files(const fs::path& folder) {
  std::vector<SetFile> sets;
  for (const fs::path& path : files_in(folder)) {
    struct stat status{};
    if (!is_set(path) || ::lstat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) continue;
    sets.push_back({path, status.st_size, status.st_mtim});
  }
  const auto time = [](const SetFile& set) { return std::pair(set.last_used.tv_sec, set.last_used.tv_nsec); };
  std::sort(sets.begin(), sets.end(), [&](const SetFile& a, const SetFile& b) {
    return time(a) != time(b) ? time(a) > time(b) : a.path < b.path;
  });
  return sets;
}

void remove_leftovers(const fs::path& folder) {
  for (const fs::path& path : files_in(folder)) {
    if (is_unfinished(path)) remove_abandoned(path);
  }
}

std::vector<std::string> names_of_files(const DataSpec& spec) {
  std::vector<std::string> names;
  for (const TrainFile& file : spec.train) names.push_back(file.path);
  if (!spec.eval.empty()) names.push_back(spec.eval);
  return names;
}

bool is_unchanged(const HashedFile& file) {
  try {
    return stamp_of(file.path) == file.stamp;
  } catch (const UserError&) {
    return false;
  }
}

}  // namespace

std::string dataset_key(const DataRequest& request, const std::vector<std::string>& file_hashes) {
  const DataSpec& spec = request.spec;
  const int64_t longest = longest_example(request);
  std::string text = fmt::format("version {} {}\n", reading_version, dataset_file_version);
  text += fmt::format("tokenizer {}\n", request.encoder.hash());
  text += fmt::format("template {}\n", request.chat_template != nullptr ? request.chat_template->hash() : "none");
  text += fmt::format("format {}\n", name_of(spec.format));
  text += fmt::format("longest {} {}\n", longest, longest > 0 ? name_of(spec.truncation) : "whole");
  text += fmt::format("prompt {}\n", spec.train_on_prompt);
  text += fmt::format("special {}\n", name_of(spec.special_tokens));
  text += fmt::format("examples {}\n", spec.max_examples);
  text += fmt::format("eval {} {:a}\n", !spec.eval.empty(), spec.eval_fraction);
  for (const std::string& hash : file_hashes) text += fmt::format("file {}\n", hash);
  return checksum(text);
}

fs::path default_dataset_cache() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && fs::path(cache).is_absolute()) return fs::path(cache) / "cotune" / "data";
  const char* home = std::getenv("HOME");
  return home != nullptr && *home != '\0' ? fs::path(home) / ".cache" / "cotune" / "data" : fs::path();
}

std::vector<CachedSet> cached_sets(const fs::path& folder) {
  std::vector<CachedSet> sets;
  for (const SetFile& file : set_files(folder)) {
    CachedSet& set = sets.emplace_back();
    set.file = file.path;
    set.bytes = file.bytes;
    set.last_used = std::chrono::system_clock::from_time_t(file.last_used.tv_sec);
    try {
      const DatasetFile content(file.path, DatasetCheck::places);
      for (const auto& part : content.header().parts) {
        set.examples += static_cast<int64_t>(part.examples);
        set.tokens += static_cast<int64_t>(part.tokens);
      }
      set.original_paths = content.original_paths();
    } catch (const UserError& error) {
      set.damage = error.what();
    }
  }
  return sets;
}

UnfinishedSets unfinished_sets(const fs::path& folder) {
  UnfinishedSets sets;
  for (const fs::path& path : files_in(folder)) {
    struct stat status{};
    if (!is_unfinished(path) || ::lstat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) continue;
    ++sets.count;
    sets.bytes += status.st_size;
  }
  return sets;
}

int64_t clear_dataset_cache(const fs::path& folder) {
  int64_t bytes = 0;
  for (const SetFile& set : set_files(folder)) {
    std::error_code error;
    if (!fs::remove(set.path, error) && error) throw SystemError(fmt::format("{}: cannot remove: {}", set.path.string(), error.message()));
    bytes += set.bytes;
  }
  const int64_t unfinished = unfinished_sets(folder).bytes;
  remove_leftovers(folder);
  bytes += unfinished - unfinished_sets(folder).bytes;
  for (const fs::path& path : files_in(folder / "hashes")) forget_hash(path);
  return bytes;
}

DatasetCache::DatasetCache(fs::path folder, int64_t most_bytes, std::function<void(const std::string&)> notice)
    : folder_(fs::absolute(folder).lexically_normal()), most_bytes_(most_bytes), notice_(std::move(notice)) {}

JobData DatasetCache::read(const DataRequest& request, Diagnostics& diagnostics, const ReadingOptions& options) {
  const std::vector<std::string> names = names_of_files(request.spec);
  if (names.empty() || (!request.spec.eval.empty() && request.spec.eval_fraction > 0)) {
    return read_job_data(request, diagnostics, options);
  }
  const std::lock_guard lock(mutex_);
  std::vector<HashedFile> files;
  std::vector<std::string> hashes;
  try {
    for (const std::string& name : names) {
      files.push_back(hash_data_file(name, folder_));
      hashes.push_back(files.back().hash);
    }
  } catch (const UserError&) {  // reading says which one it is
    return read_job_data(request, diagnostics, options);
  }
  const std::string key = dataset_key(request, hashes);
  try {
    if (const auto found = find(key, names.size())) {
      JobData data = found->data(names);
      data.was_cached = true;
      return data;
    }
  } catch (const SystemError& error) {
    if (unopened_.insert(key).second) notice_(fmt::format("{}: its data are tokenized again, and held in memory", error.what()));
    return read_job_data(request, diagnostics, options);
  }
  if (!can_write_) return read_job_data(request, diagnostics, options);
  try {
    Diagnostics mistakes;
    const auto written = write(key, request, files, mistakes, options);
    JobData data = written->data(names);
    if (data.cache_file != folder_ / (key + set_suffix)) data.cache_file.clear();  // it is not kept
    for (const Diagnostic& mistake : mistakes.items()) diagnostics.add(mistake.file, mistake.line, mistake.field, mistake.message);
    return data;
  } catch (const SystemError& error) {
    can_write_ = false;
    notice_(fmt::format("{}: tokenized data are held in memory, and will be tokenized again", error.what()));
  }
  return read_job_data(request, diagnostics, options);
}

std::shared_ptr<const DatasetFile> DatasetCache::find(const std::string& key, size_t file_count) {
  const fs::path path = folder_ / (key + set_suffix);
  std::shared_ptr<const DatasetFile> found = open_[key].lock();
  std::error_code error;
  if (found == nullptr) {
    if (!fs::exists(path, error)) return nullptr;
    std::shared_ptr<const MappedFile> mapped;
    try {
      mapped = std::make_shared<MappedFile>(path);
    } catch (const UserError& refusal) {
      if (!fs::exists(path, error)) return nullptr;  // another process has just removed it
      throw SystemError(refusal.what());
    }
    try {
      found = std::make_shared<DatasetFile>(mapped);
      if (found->key() != key || found->file_count() != file_count) throw_user_error("{}: holds other data than its name says", path.string());
    } catch (const UserError& damage) {
      notice_(fmt::format("{}; the data are tokenized again", damage.what()));
      fs::remove(path, error);
      return nullptr;
    }
    open_[key] = found;
  }
  ::utimensat(AT_FDCWD, path.c_str(), nullptr, 0);  // used now; a folder that cannot be written keeps the older time
  return found;
}

std::shared_ptr<const DatasetFile> DatasetCache::write(const std::string& key, const DataRequest& request,
                                                       const std::vector<HashedFile>& files, Diagnostics& mistakes,
                                                       const ReadingOptions& options) {
  make_private_folder(folder_);
  remove_leftovers(folder_);
  std::vector<std::string> paths;
  for (const HashedFile& file : files) paths.push_back(file.path.string());
  const fs::path path = folder_ / (key + set_suffix);
  DatasetFileWriter writer(path, 0600);
  const std::vector<FileReport> reports = read_examples(request, writer, mistakes, options);
  writer.finish(key, reports, paths);
  const auto changed = std::find_if_not(files.begin(), files.end(), is_unchanged);
  if (changed != files.end() && mistakes.empty()) {
    notice_(fmt::format("{}: changed while it was read: its tokens are not kept", changed->path.string()));
  }
  const auto unnamed = std::make_shared<const DatasetFile>(writer.temporary(), DatasetCheck::places);
  if (!mistakes.empty() || changed != files.end()) return unnamed;
  writer.commit();
  std::shared_ptr<const DatasetFile> written;
  try {
    written = std::make_shared<const DatasetFile>(path, DatasetCheck::places);
  } catch (const UserError&) {  // another process has just removed it, or written it anew
    return unnamed;
  }
  open_[key] = written;
  make_room(path);
  return written;
}

void DatasetCache::make_room(const fs::path& kept) {
  int64_t bytes = 0;
  for (const SetFile& set : set_files(folder_)) {  // once it is full, whatever was used longer ago goes
    bytes += set.bytes;
    std::error_code ignored;
    if (bytes > most_bytes_ && set.path != kept) fs::remove(set.path, ignored);
  }
  for (const fs::path& path : files_in(folder_ / "hashes")) forget_hash_of_missing_file(path);
}

}  // namespace cotune
