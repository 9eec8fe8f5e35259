#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <ctime>
#include <memory>

#include "base/counted.h"
#include "base/error.h"
#include "base/quantity_text.h"
#include "cli/commands.h"
#include "cli/inputs/data_reading.h"
#include "watch/screen_text.h"

namespace cotune {
namespace {

std::filesystem::path folder_of(const std::string& given) {
  const std::filesystem::path folder = given.empty() ? default_dataset_cache() : std::filesystem::path(given);
  if (folder.empty()) throw_user_error("--folder: the environment gives neither XDG_CACHE_HOME nor HOME: name the folder of tokenized data");
  if (!given.empty() && !std::filesystem::is_directory(folder)) throw_user_error("--folder: there is no folder {}", folder.string());
  return folder;
}

std::string time_text(std::chrono::system_clock::time_point time) {
  const std::time_t seconds = std::chrono::system_clock::to_time_t(time);
  std::tm local{};
  ::localtime_r(&seconds, &local);
  return fmt::format("{:%Y-%m-%d %H:%M}", local);
}

void list_sets(const std::string& given) {
  const std::filesystem::path folder = folder_of(given);
  const std::vector<CachedSet> sets = cached_sets(folder);
  int64_t bytes = 0;
  for (const CachedSet& set : sets) bytes += set.bytes;
  fmt::print("{}: {} of tokenized data, {}\n", folder.string(), counted(std::ssize(sets), "set"), bytes_text(bytes));
  if (const UnfinishedSets unfinished = unfinished_sets(folder); unfinished.count > 0) {
    fmt::print("unfinished: {}, {}: being written, or left by a process that was killed\n", counted(unfinished.count, "file"),
               bytes_text(unfinished.bytes));
  }
  if (sets.empty()) return;
  fmt::print("{:>10}  {:16}  {:>10}  {:>13}  from\n", "size", "last used", "examples", "tokens");
  for (const CachedSet& set : sets) {
    const std::string from = set.damage.empty() ? fmt::format("{}", fmt::join(set.original_paths, ", ")) : "damaged: " + set.damage;
    fmt::print("{:>10}  {:16}  {:>10}  {:>13}  {}\n", bytes_text(set.bytes), time_text(set.last_used), set.examples, set.tokens,
               printable(from));
  }
}

void clear_sets(const std::string& given) {
  const std::filesystem::path folder = folder_of(given);
  const size_t count = cached_sets(folder).size();
  const int64_t bytes = clear_dataset_cache(folder);
  fmt::print("{}: removed {} of tokenized data, {}\n", folder.string(), counted(static_cast<int64_t>(count), "set"), bytes_text(bytes));
}

}  // namespace

void add_cache_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("cache", "List or clear the folder where tokenized data are kept");
  command->require_subcommand(1);
  auto folder = std::make_shared<std::string>();
  const auto add = [&](const char* name, const char* description, void (*act)(const std::string&)) {
    CLI::App* action = command->add_subcommand(name, description);
    action->add_option("--folder", *folder, "The folder, as run.data_cache names it (default: the user's own)");
    action->callback([folder, act] { act(*folder); });
  };
  add("list", "Show every set: its size, when it was used last, and of which files it was made", list_sets);
  add("clear", "Remove every set. Runs that use one keep it until they end", clear_sets);
}

}  // namespace cotune
