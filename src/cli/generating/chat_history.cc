#include "cli/generating/chat_history.h"

#include <fmt/format.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/appended_file.h"
#include "base/atomic_file.h"
#include "base/error.h"
#include "base/json_text.h"

namespace cotune {
namespace {

namespace fs = std::filesystem;

constexpr ptrdiff_t kept = 1000, most = 2 * kept;
constexpr uint32_t owner_only = 0600;

std::string line_of(const std::string& text) {
  return text_of_json(nlohmann::json(text)) + "\n";
}

}  // namespace

fs::path default_chat_history() {
  const char* state = std::getenv("XDG_STATE_HOME");
  if (state != nullptr && fs::path(state).is_absolute()) return fs::path(state) / "cotune" / "chat_history";
  const char* home = std::getenv("HOME");
  return home != nullptr && *home != '\0' ? fs::path(home) / ".local" / "state" / "cotune" / "chat_history" : fs::path();
}

ChatHistory::ChatHistory(fs::path path) : path_(std::move(path)) {
  if (std::error_code unknown; path_.empty() || !fs::is_regular_file(path_, unknown)) return;
  std::ifstream file(path_);
  for (std::string line; std::getline(file, line);) {
    const nlohmann::json text = nlohmann::json::parse(line, nullptr, false);
    if (text.is_string()) texts_.push_back(text.get<std::string>());
  }
  if (std::ssize(texts_) <= most) return;
  texts_.erase(texts_.begin(), texts_.end() - kept);
  try {
    AtomicFile shorter(path_, owner_only);
    for (const std::string& text : texts_) shorter.append(line_of(text));
    shorter.commit();
  } catch (const SystemError&) {  // it stays as long as it is
  }
}

void ChatHistory::add(const std::string& text) {
  if (path_.empty()) return;
  const fs::path path = std::exchange(path_, fs::path());
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  if (error) throw SystemError(fmt::format("{}: cannot make the folder: {}", path.parent_path().string(), error.message()));
  AppendedFile(path, true, owner_only).write(line_of(text));
  path_ = path;
}

}  // namespace cotune
