#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace cotune {

/// $XDG_STATE_HOME/cotune/chat_history or ~/.local/state/cotune/chat_history; empty where the environment gives neither.
std::filesystem::path default_chat_history();

/// What was typed into chats, for the chats to come: a file that its owner alone may read (mode 0600), a JSON string a line, the newest
/// last. Chats that go on at once add to the same file.
class ChatHistory {
 public:
  /// path: empty keeps nothing. Lines that are no texts are passed over. A file that has grown beyond 2000 texts is cut to the last 1000.
  explicit ChatHistory(std::filesystem::path path);

  /// Of earlier chats, the oldest first.
  const std::vector<std::string>& texts() const { return texts_; }
  /// At once: it outlives the program. Throws SystemError where it cannot be kept; nothing is tried again then.
  void add(const std::string& text);

 private:
  std::filesystem::path path_;
  std::vector<std::string> texts_;
};

}  // namespace cotune
