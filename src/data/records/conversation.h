/// A chat that goes on: its messages, steps back, and the file that it is kept in.
#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace cotune {

/// Messages as chat templates take them. What is said is stored as UTF-8: other bytes become U+FFFD.
class Conversation {
 public:
  explicit Conversation(const std::optional<std::string>& system = std::nullopt);
  /// field: what they are called in messages. Throws RecordError where the messages are none.
  static Conversation from_messages(const nlohmann::ordered_json& messages, const std::string& field = "messages");

  const nlohmann::ordered_json& messages() const { return messages_; }
  bool awaits_answer() const { return !messages_.empty() && messages_.back()["role"] == "user"; }
  void say(std::string_view text);
  void answer(std::string_view text);
  /// In place of the first message where that is a system message; nothing: none.
  void set_system(const std::optional<std::string>& system);
  /// All but the system message is forgotten.
  void begin_anew();
  /// Forgets the newest message of the user and what came after it; false where there is none.
  bool undo();
  /// Forgets what came after the newest message of the user; false where there is none.
  bool take_back_answer();

 private:
  bool has_system() const { return !messages_.empty() && messages_.front()["role"] == "system"; }
  void keep(size_t count);

  nlohmann::ordered_json messages_ = nlohmann::ordered_json::array();
};

/// What a session's file holds: {"messages": […]}, which is a record of training data too, or, of several adapters,
/// {"conversations": {"NAME": […], …}}. What else stands in it (`tools`, `id`, …) is kept.
struct SessionFile {
  nlohmann::ordered_json record = nlohmann::ordered_json::object();  ///< the whole object; its conversations are those below
  std::optional<Conversation> of_all;
  std::map<std::string, Conversation> by_adapter;
};

/// Those of the record, as templates take them; null: none. Throws RecordError.
nlohmann::ordered_json tools_of(const SessionFile& session);

/// Throws UserError naming the file, the line, the place in it, what was found and what is accepted.
SessionFile read_session(const std::filesystem::path& path);
/// At once and whole (write_file_atomically). Throws SystemError.
void write_session(const std::filesystem::path& path, const SessionFile& session);

}  // namespace cotune
