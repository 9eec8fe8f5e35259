#include "train/checkpoint.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "adapter/adapter_file.h"
#include "base/atomic_file.h"
#include "base/error.h"
#include "base/file.h"
#include "base/running_checksum.h"
#include "base/shell_quoted.h"
#include "train/folder_checksums.h"

namespace cotune {
namespace {

namespace fs = std::filesystem;

constexpr const char* optimizer_file = "optimizer.safetensors";
constexpr const char* state_file = "state.json";
/// In `latest`: the job begins again.
constexpr const char* no_checkpoint = "none";

std::string name_in(const fs::path& file) {
  std::string name = read_file(file);
  while (!name.empty() && name.back() == '\n') name.pop_back();
  return name;
}

/// Somebody wrote that the job is to begin again.
bool begins_again(const fs::path& job_folder) {
  try {
    return name_in(job_folder / "latest") == no_checkpoint;
  } catch (const UserError&) {
    return false;
  }
}

std::optional<fs::path> named_folder(const fs::path& job_folder, const char* pointer) {
  const fs::path file = job_folder / pointer;
  if (!fs::exists(file)) return std::nullopt;
  const std::string name = name_in(file);
  if (name == no_checkpoint) return std::nullopt;
  const fs::path folder = job_folder / name;
  if (!name.starts_with("step-") || name.find('/') != std::string::npos || !fs::is_directory(folder)) {
    throw_user_error("{}: names `{}`, which is not a checkpoint in {}", file.string(), name, job_folder.string());
  }
  return folder;
}

/// Nothing, too, where somebody removed the folder.
std::optional<fs::path> named_folder_if_there(const fs::path& job_folder, const char* name) {
  try {
    return named_folder(job_folder, name);
  } catch (const UserError&) {
    return std::nullopt;
  }
}

/// A second chance: one that somebody removed is no mistake.
std::optional<fs::path> previous_checkpoint(const fs::path& job_folder) { return named_folder_if_there(job_folder, "previous"); }

/// Whether the folder is of that step: `step-N`, or `step-N.again` where it was saved again.
bool is_of_step(const fs::path& folder, int64_t step) {
  const std::string name = folder.filename(), first = fmt::format("step-{}", step);
  return name == first || name.starts_with(first + ".");
}

/// N of a folder that saving has made, `step-N`, or `step-N.again` where the step was saved again; nothing for any other.
std::optional<int64_t> step_of(const fs::directory_entry& folder) {
  constexpr std::string_view prefix = "step-", again = ".again";
  const std::string whole_name = folder.path().filename().string();
  std::string_view name = whole_name;
  std::error_code unknown;
  if (!name.starts_with(prefix) || !fs::is_directory(folder.symlink_status(unknown))) return std::nullopt;
  name.remove_prefix(prefix.size());
  while (name.ends_with(again)) name.remove_suffix(again.size());
  int64_t step = 0;
  std::from_chars(name.data(), name.data() + name.size(), step);
  return step >= 0 && name == std::to_string(step) ? std::optional(step) : std::nullopt;
}

/// Names of the folders that must not be touched.
std::set<std::string> named_checkpoints(const fs::path& job_folder) {
  std::set<std::string> names;
  for (const char* name : {"latest", "previous", "best"}) {
    if (const std::optional<fs::path> folder = named_folder_if_there(job_folder, name)) names.insert(folder->filename());
  }
  return names;
}

void remove_quietly(const fs::path& path) {
  std::error_code ignored;  // what cannot be removed does no harm
  fs::remove_all(path, ignored);
}

/// newest_step: the last that the job can have saved; asked for where a folder is of a later one than `latest`.
void remove_unnamed_checkpoints(const fs::path& job_folder, const std::function<int64_t()>& newest_step) {
  const std::set<std::string> named = named_checkpoints(job_folder);
  const std::optional<fs::path> latest = latest_checkpoint_if_there(job_folder);
  std::optional<int64_t> newest;
  const int64_t known = latest ? step_of(fs::directory_entry(*latest)).value_or(-1) : -1;
  std::vector<fs::path> obsolete;
  for (const fs::directory_entry& entry : fs::directory_iterator(job_folder)) {
    const std::optional<int64_t> step = step_of(entry);
    if (!step || named.contains(entry.path().filename().string())) continue;
    if (*step > known && !newest) newest = newest_step();
    if (*step <= std::max(known, newest.value_or(-1))) obsolete.push_back(entry.path());
  }
  for (const fs::path& folder : obsolete) remove_quietly(folder);
}

/// An empty folder for the step. Its name is one that nothing names.
fs::path make_step_folder(const fs::path& job_folder, int64_t step) {
  const std::set<std::string> named = named_checkpoints(job_folder);
  std::string name = fmt::format("step-{}", step);
  while (named.contains(name)) name += ".again";
  const fs::path folder = job_folder / name;
  fs::remove_all(folder);  // unfinished, from a run that was killed
  fs::create_directories(folder);
  return folder;
}

/// Where the newest checkpoint is the best by its own state, `best` names it: saving may have ended before it did.
void catch_up_best(const fs::path& job_folder) {
  const std::optional<fs::path> latest = latest_checkpoint(job_folder);
  if (!latest || latest == named_folder_if_there(job_folder, "best")) return;
  try {
    const JobState state = JobState::from_json(read_file(*latest / state_file), (*latest / state_file).string());
    if (state.step <= 0 || state.best_step != state.step) return;
    read_checkpoint_state(*latest);
  } catch (const UserError&) {
    return;  // damaged: the best there was stays
  }
  write_file_atomically(job_folder / "best", latest->filename().string() + "\n");
}

void write_checkpoint(const fs::path& folder, const Adapter& adapter, const JobState& state,
                      const std::string& base_model) {
  nlohmann::ordered_json checksums;
  const auto write = [&](const char* name, const std::function<void(const TakeBytes&)>& give) {
    AtomicFile file(folder / name);
    RunningChecksum checksum;
    give([&](std::string_view bytes) {
      file.append(bytes);
      checksum.add(std::as_bytes(std::span(bytes)));
    });
    file.commit();
    checksums[name] = checksum.text();
  };
  write(adapter_config_file, [&](const TakeBytes& take) { take(adapter_config_bytes(adapter, base_model)); });
  write(adapter_model_file, [&](const TakeBytes& take) { write_adapter_model(adapter, take); });
  write(optimizer_file, [&](const TakeBytes& take) { write_optimizer_state(adapter, take); });
  write(state_file, [&](const TakeBytes& take) { take(state.to_json()); });
  write_file_atomically(folder / checksums_file, checksums.dump(2));
}

}  // namespace

void save_checkpoint(const fs::path& job_folder, const Adapter& adapter, const JobState& state,
                     const std::string& base_model, bool mark_best) {
  fs::path folder;
  try {
    folder = make_step_folder(job_folder, state.step);
    write_checkpoint(folder, adapter, state, base_model);
    sync_folder(job_folder);
    const std::string name = folder.filename().string() + "\n";
    const std::optional<fs::path> before = latest_checkpoint_if_there(job_folder);
    if (before && !is_of_step(*before, state.step)) {
      write_file_atomically(job_folder / "previous", before->filename().string() + "\n");
    }
    // `best` last: what `latest` names tells that it was to follow (catch_up_best), and not the other way round.
    write_file_atomically(job_folder / "latest", name);
    if (mark_best) write_file_atomically(job_folder / "best", name);
    remove_unnamed_checkpoints(job_folder, [&state] { return state.step; });
  } catch (const fs::filesystem_error& error) {
    throw SystemError(fmt::format("{}: cannot write a checkpoint: {}", job_folder.string(), error.what()));
  } catch (const SystemError&) {
    if (!folder.empty() && !named_checkpoints(job_folder).contains(folder.filename())) remove_quietly(folder);
    throw;
  }
}

bool withdraw_latest_checkpoint(const fs::path& job_folder) {
  const std::optional<fs::path> latest = latest_checkpoint_if_there(job_folder), previous = previous_checkpoint(job_folder);
  if (!previous || latest == previous) return false;
  write_file_atomically(job_folder / "latest", previous->filename().string() + "\n");
  return true;
}

bool has_checkpoint(const fs::path& job_folder) {
  std::error_code unknown;
  return fs::exists(job_folder / "latest", unknown) && !begins_again(job_folder);
}

void check_checkpoints(const fs::path& job_folder) {
  if (begins_again(job_folder)) return;
  latest_checkpoint(job_folder);
  best_checkpoint(job_folder);
}

void remove_leftovers(const fs::path& job_folder, bool keeps_best, const std::function<int64_t()>& newest_step) {
  if (!fs::exists(job_folder)) return;
  check_checkpoints(job_folder);
  if (begins_again(job_folder)) {
    for (const char* name : {"previous", "best"}) remove_quietly(job_folder / name);
  }
  if (keeps_best) catch_up_best(job_folder);
  remove_unnamed_checkpoints(job_folder, newest_step);
  std::vector<fs::path> unfinished;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(job_folder)) {
    if (is_temporary_file(entry.path())) unfinished.push_back(entry.path());
  }
  for (const fs::path& file : unfinished) remove_quietly(file);
}

std::optional<fs::path> latest_checkpoint(const fs::path& job_folder) { return named_folder(job_folder, "latest"); }
std::optional<fs::path> best_checkpoint(const fs::path& job_folder) { return named_folder(job_folder, "best"); }
std::optional<fs::path> latest_checkpoint_if_there(const fs::path& job_folder) { return named_folder_if_there(job_folder, "latest"); }

std::vector<fs::path> whole_checkpoints(const fs::path& job_folder) {
  std::vector<std::pair<int64_t, fs::path>> found;
  std::error_code unknown;
  for (const fs::directory_entry& entry : fs::directory_iterator(job_folder, unknown)) {
    const std::optional<int64_t> step = step_of(entry);
    if (!step) continue;
    try {
      if (read_checkpoint_state(entry.path()).step == *step) found.emplace_back(*step, entry.path());
    } catch (const UserError&) {  // not this one
    }
  }
  std::ranges::sort(found, std::greater());  // of one step `.again` comes first
  std::vector<fs::path> folders;
  for (auto& [step, folder] : found) folders.push_back(std::move(folder));
  return folders;
}

std::string way_out_of_damage(const fs::path& job_folder) {
  const fs::path latest = job_folder / "latest";
  const std::string file = shell_quoted(latest.string());
  const std::vector<fs::path> whole = whole_checkpoints(job_folder);
  std::error_code unknown;
  const bool is_in_the_way = fs::exists(latest, unknown) && (!fs::is_regular_file(latest, unknown) || ::access(latest.c_str(), W_OK) != 0);
  const std::string first = is_in_the_way ? fmt::format("rm -rf {} && ", file)
                            : fs::exists(job_folder, unknown) ? ""
                                                              : fmt::format("mkdir -p {} && ", shell_quoted(job_folder.string()));
  if (whole.empty()) {
    return fmt::format("; no other checkpoint of the job is whole: `{}echo {} > {}` begins the job again", first, no_checkpoint, file);
  }
  std::string names;
  for (const fs::path& folder : whole) names += (names.empty() ? "" : ", ") + folder.string();
  const char* const are = whole.size() == 1 ? "is" : "are";
  if (first.empty() && previous_checkpoint(job_folder) == whole.front()) {
    return fmt::format("; {} {} whole: `cp {} {}` goes on from {}", names, are, shell_quoted((job_folder / "previous").string()), file,
                       whole.size() == 1 ? "it" : "the newest");
  }
  return fmt::format("; {} {} whole: `{}echo {} > {}` goes on from {}", names, are, first, shell_quoted(whole.front().filename().string()), file,
                     whole.size() == 1 ? "it" : "the newest");
}

JobState read_checkpoint_state(const fs::path& checkpoint) {
  const std::map<std::string, std::string> checksums = read_checksums(checkpoint);
  for (const char* file : {adapter_config_file, adapter_model_file, optimizer_file, state_file}) {
    check_against_checksum(checkpoint, file, checksums);
  }
  const fs::path state_path = checkpoint / state_file;
  return JobState::from_json(read_file(state_path), state_path.string());
}

JobState load_checkpoint(const fs::path& checkpoint, Adapter& adapter) {
  JobState state = read_checkpoint_state(checkpoint);
  load_adapter(adapter, checkpoint);
  load_optimizer_state(adapter, checkpoint / optimizer_file);
  return state;
}

}  // namespace cotune
