#include "jobs/hub_cache.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/home_folder.h"

namespace cotune {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view folder_prefix = "models--", separator = "--", snapshots_folder = "snapshots", gguf_ending = ".gguf";
constexpr size_t longest_part = 96;
constexpr size_t longest_reference = 256;

bool is_word_character(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

bool is_name_part(std::string_view part) {
  return !part.empty() && part.size() <= longest_part && is_word_character(part.front()) && is_word_character(part.back()) &&
         std::all_of(part.begin(), part.end(), [](char c) { return is_word_character(c) || c == '-' || c == '.'; });
}

bool is_revision(std::string_view text) {
  return !text.empty() && text.find("..") == std::string_view::npos && !text.starts_with('/') && std::all_of(text.begin(), text.end(), [](char c) {
    return is_word_character(c) || std::string_view("-./+").find(c) != std::string_view::npos;
  });
}

/// A path inside a repository.
bool is_file(std::string_view text) {
  for (const fs::path& part : fs::path(text)) {
    if (part.empty() || part == "." || part == "..") return false;
  }
  return !text.starts_with('/') && text.find("//") == std::string_view::npos &&
         std::none_of(text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; });
}

bool is_commit(std::string_view text) {
  return text.size() == 40 && std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isdigit(c) || (c >= 'a' && c <= 'f'); });
}

std::string environment(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value == nullptr ? "" : value;
}

/// With `~` at the beginning and `$NAME`, `${NAME}` anywhere replaced; unknown variables stay.
std::string expanded(std::string text) {
  text = with_home_folder(std::move(text));
  std::string result;
  for (size_t at = 0; at < text.size();) {
    const bool braces = text.compare(at, 2, "${") == 0;
    const size_t begin = at + (braces ? 2 : 1);
    size_t end = begin;
    while (text[at] == '$' && end < text.size() && is_word_character(text[end])) ++end;
    const bool closed = !braces || (end < text.size() && text[end] == '}');
    const std::string name = text[at] == '$' && closed ? text.substr(begin, end - begin) : "";
    if (name.empty() || std::getenv(name.c_str()) == nullptr) {
      result += text[at++];
    } else {
      result += environment(name);
      at = end + (braces ? 1 : 0);
    }
  }
  return result;
}

fs::path folder_of(const HubName& name, const fs::path& cache) {
  std::string folder(folder_prefix);
  for (const char c : name.repository) folder += c == '/' ? std::string(separator) : std::string(1, c);
  return cache / folder;
}

/// As users write it.
std::string text_of(const HubName& name) {
  return name.repository + (name.file.empty() ? "" : "/" + name.file) + (name.revision == "main" ? "" : "@" + name.revision);
}

bool says_gguf(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text.find(gguf_ending.substr(1)) != std::string::npos;
}

/// For a shell.
std::string quoted(const std::string& word) {
  const bool is_plain = std::all_of(word.begin(), word.end(),
                                    [](char c) { return is_word_character(c) || std::string_view("-./+@=,:").find(c) != std::string_view::npos; });
  if (is_plain) return word;
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

/// Whether the file is another part than the first of those that llama-gguf-split makes: NAME-00002-of-00003.gguf.
bool is_later_part(std::string_view file) {
  constexpr std::string_view form = "-#####-of-#####.gguf", first = "-00001-of-";
  if (file.size() < form.size()) return false;
  file = file.substr(file.size() - form.size());
  const bool is_part =
      std::ranges::equal(file, form, [](unsigned char c, char wanted) { return wanted == '#' ? std::isdigit(c) != 0 : c == wanted; });
  return is_part && !file.starts_with(first);
}

/// Relative to the snapshot, sorted, of parts the first; empty where there are other weights too.
std::vector<std::string> files_of_gguf_repository(const fs::path& snapshot) {
  std::vector<std::string> files;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(snapshot, fs::directory_options::skip_permission_denied)) {
    if (!entry.is_regular_file()) continue;
    if (entry.path().extension() == ".safetensors") return {};
    if (entry.path().extension() == gguf_ending && !is_later_part(entry.path().filename().string())) {
      files.push_back(entry.path().lexically_relative(snapshot).string());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::string commit_of(const HubName& name, const fs::path& folder) {
  if (is_commit(name.revision)) return name.revision;
  const fs::path reference = folder / "refs" / name.revision;
  std::error_code unreadable;
  if (!fs::is_regular_file(reference, unreadable) || fs::file_size(reference, unreadable) > longest_reference) return "";
  std::string commit = read_file(reference);
  while (!commit.empty() && std::isspace(static_cast<unsigned char>(commit.back()))) commit.pop_back();
  return commit.find('/') == std::string::npos && commit != ".." ? commit : "";
}

}  // namespace

std::optional<HubName> parse_hub_name(std::string_view text) {
  HubName name;
  if (const size_t at = text.find('@'); at != std::string_view::npos) {
    name.revision = text.substr(at + 1);
    if (!is_revision(name.revision)) return std::nullopt;
    text = text.substr(0, at);
  }
  const size_t slash = text.find('/'), second = slash == std::string_view::npos ? slash : text.find('/', slash + 1);
  if (second != std::string_view::npos) {
    name.file = text.substr(second + 1);
    text = text.substr(0, second);
    if (!name.file.ends_with(gguf_ending) || !is_file(name.file)) return std::nullopt;
  }
  const bool is_sound = slash == std::string_view::npos ? is_name_part(text)
                                                        : is_name_part(text.substr(0, slash)) && is_name_part(text.substr(slash + 1));
  if (!is_sound || text.find("--") != std::string_view::npos || text.find("..") != std::string_view::npos || text.ends_with(".git")) {
    return std::nullopt;
  }
  name.repository = text;
  return name;
}

fs::path hub_cache_folder() {
  for (const char* variable : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}) {
    if (const std::string folder = environment(variable); !folder.empty()) return expanded(folder);
  }
  if (const std::string home = environment("HF_HOME"); !home.empty()) return fs::path(expanded(home)) / "hub";
  const std::string user_cache = environment("XDG_CACHE_HOME");
  return fs::path(expanded(user_cache.empty() ? "~/.cache" : user_cache)) / "huggingface" / "hub";
}

std::optional<fs::path> find_in_hub_cache(const HubName& name, const fs::path& cache) {
  const fs::path folder = folder_of(name, cache);
  const std::string commit = commit_of(name, folder);
  std::error_code unreadable;
  if (commit.empty()) return std::nullopt;
  const fs::path snapshot = folder / snapshots_folder / commit, found = name.file.empty() ? snapshot : snapshot / name.file;
  const bool is_there = name.file.empty() ? fs::is_directory(found, unreadable) : fs::is_regular_file(found, unreadable);
  return is_there ? std::optional(found) : std::nullopt;
}

std::string hub_download_command(const HubName& name) {
  const std::string file = !name.file.empty() ? " " + quoted(name.file) : says_gguf(name.repository) ? " FILE.gguf" : "";
  return fmt::format("hf download {}{}{}", name.repository, file, name.revision == "main" ? "" : " --revision " + name.revision);
}

std::string hub_cache_complaint(const HubName& name, const fs::path& cache) {
  const fs::path folder = folder_of(name, cache);
  std::error_code unreadable;
  std::string found = "does not exist";
  if (fs::exists(folder, unreadable)) {
    const bool has_revision = find_in_hub_cache({name.repository, name.revision}, cache).has_value();
    found = has_revision ? fmt::format("holds no {} of revision {}", name.file, name.revision) : fmt::format("holds no revision {}", name.revision);
  }
  return fmt::format("it is not in the Hugging Face cache either ({} {}); `{}` fetches it", folder.string(), found,
                     hub_download_command(name));
}

fs::path path_or_snapshot(const fs::path& path) {
  std::error_code unreadable;
  if (fs::exists(path, unreadable)) return path;
  const std::optional<HubName> name = parse_hub_name(path.string());
  return name ? find_in_hub_cache(*name).value_or(path) : path;
}

fs::path model_in_snapshot(const fs::path& found, const HubName& name) {
  if (!fs::is_directory(found)) return found;
  const std::vector<std::string> files = files_of_gguf_repository(found);
  if (files.empty()) return found;
  if (files.size() == 1) return found / files.front();
  HubName one = name;
  one.file = files.front();
  throw_user_error("{}: holds {} GGUF files: {}; name one of them, such as {}", text_of(name), files.size(), fmt::join(files, ", "), text_of(one));
}

fs::path model_path(const fs::path& path) {
  const fs::path found = path_or_snapshot(path);
  const std::optional<HubName> of_folder = hub_name_of(found);
  return of_folder ? model_in_snapshot(found, parse_hub_name(path.string()).value_or(*of_folder)) : found;
}

std::string hub_cache_hint(const fs::path& path) {
  const std::optional<HubName> name = parse_hub_name(path.string());
  return name ? "; " + hub_cache_complaint(*name) : "";
}

std::string hub_part_complaint(const fs::path& path) {
  const std::optional<HubName> name = hub_name_of(path);
  if (!name) return "";
  return fmt::format("is of the Hugging Face cache, which may hold a part only: `{}` fetches the rest", hub_download_command(*name));
}

std::string hub_part_hint(const fs::path& path) {
  const std::string complaint = hub_part_complaint(path);
  return complaint.empty() ? "" : "; it " + complaint;
}

std::optional<HubName> hub_name_of(const fs::path& path) {
  fs::path folder = (path / "").lexically_normal().parent_path(), file;
  if (folder.extension() == gguf_ending) {
    while (folder.has_relative_path() && folder.parent_path().filename() != snapshots_folder) {
      file = file.empty() ? folder.filename() : folder.filename() / file;
      folder = folder.parent_path();
    }
  }
  if (folder.parent_path().filename() != snapshots_folder || !is_commit(folder.filename().string())) return std::nullopt;
  std::string repository = folder.parent_path().parent_path().filename().string();
  if (!repository.starts_with(folder_prefix)) return std::nullopt;
  repository.erase(0, folder_prefix.size());
  if (const size_t border = repository.find(separator); border != std::string::npos) repository.replace(border, separator.size(), "/");
  return HubName{repository, folder.filename().string(), file.string()};
}

}  // namespace cotune
