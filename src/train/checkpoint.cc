#include "train/checkpoint.h"

#include <fmt/format.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <vector>

#include "adapter/adapter_file.h"
#include "base/atomic_file.h"
#include "base/error.h"
#include "base/file.h"
#include "base/running_checksum.h"

namespace cotune {
namespace {

namespace fs = std::filesystem;

constexpr const char* optimizer_file = "optimizer.safetensors";
constexpr const char* state_file = "state.json";
constexpr const char* checksums_file = "checksums.json";

std::optional<fs::path> named_folder(const fs::path& job_folder, const char* pointer) {
  const fs::path file = job_folder / pointer;
  if (!fs::exists(file)) return std::nullopt;
  std::string name = read_file(file);
  while (!name.empty() && name.back() == '\n') name.pop_back();
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

void remove_unnamed_checkpoints(const fs::path& job_folder) {
  const std::set<std::string> named = named_checkpoints(job_folder);
  std::vector<fs::path> obsolete;
  for (const fs::directory_entry& entry : fs::directory_iterator(job_folder)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("step-") && !named.contains(name)) obsolete.push_back(entry.path());
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
    if (mark_best) write_file_atomically(job_folder / "best", name);
    write_file_atomically(job_folder / "latest", name);
    remove_unnamed_checkpoints(job_folder);
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
  return fs::exists(job_folder / "latest", unknown);
}

void check_checkpoints(const fs::path& job_folder) {
  latest_checkpoint(job_folder);
  best_checkpoint(job_folder);
}

void remove_leftovers(const fs::path& job_folder) {
  if (!fs::exists(job_folder)) return;
  check_checkpoints(job_folder);
  remove_unnamed_checkpoints(job_folder);
  std::vector<fs::path> unfinished;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(job_folder)) {
    if (is_temporary_file(entry.path())) unfinished.push_back(entry.path());
  }
  for (const fs::path& file : unfinished) remove_quietly(file);
}

std::optional<fs::path> latest_checkpoint(const fs::path& job_folder) { return named_folder(job_folder, "latest"); }
std::optional<fs::path> best_checkpoint(const fs::path& job_folder) { return named_folder(job_folder, "best"); }
std::optional<fs::path> latest_checkpoint_if_there(const fs::path& job_folder) { return named_folder_if_there(job_folder, "latest"); }

std::string way_out_of_damage(const fs::path& job_folder) {
  const std::optional<fs::path> previous = previous_checkpoint(job_folder);
  if (!previous) return "";
  try {
    read_checkpoint_state(*previous);
  } catch (const UserError&) {
    return "";
  }
  return fmt::format("; {} is whole: `cp {} {}` goes on from it", previous->string(), (job_folder / "previous").string(),
                     (job_folder / "latest").string());
}

JobState read_checkpoint_state(const fs::path& checkpoint) {
  const fs::path checksums_path = checkpoint / checksums_file;
  try {
    const auto checksums = nlohmann::json::parse(read_file(checksums_path));
    for (const char* file : {adapter_config_file, adapter_model_file, optimizer_file, state_file}) {
      if (!checksums.contains(file)) throw_user_error("{}: does not list {}", checksums_path.string(), file);
    }
    for (const auto& [file, expected] : checksums.items()) {
      if (checksum_of_file(checkpoint / file) != expected.get<std::string>()) {
        throw_user_error("{}: is damaged (its checksum is not the one in {})", (checkpoint / file).string(),
                         checksums_path.string());
      }
    }
  } catch (const nlohmann::json::exception& error) {
    throw_user_error("{}: is not a list of checksums: {}", checksums_path.string(), error.what());
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
