#include "cli/generating/chat_session.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "base/abrupt_exit.h"
#include "base/counted.h"
#include "base/diagnostics.h"
#include "base/error.h"
#include "cli/generating/answer_display.h"
#include "cli/generating/answering.h"
#include "cli/generating/chat_input.h"
#include "cli/terminal/interruption.h"
#include "console/early_stop.h"
#include "data/records/conversation.h"

namespace cotune {
namespace {

constexpr const char* help = R"(/new              begin a new conversation
/retry            another answer to the last message (the same one at temperature 0)
/undo             take back the last message and its answer
/system TEXT      another system message from here on; without TEXT none
/adapter NAME     go on with one adapter; /adapter all: with all of them again
/save FILE        keep the conversation in a file, as --session does
/exit             end the program, as Ctrl-D does; /quit and /bye too
/help             this list
Up, Ctrl-R        what was typed before, in this chat and earlier ones
"""               lines up to the next """ are one message; so are lines that end in \
Ctrl-C ends an answer, Ctrl-D the program. A message that begins with / is written with a space before it.
)";

/// An adapter's side of the chat.
struct Side {
  Conversation conversation;
  CachedSequence memory;
};

class Chat {
 public:
  Chat(const GenerateOptions& options, AdaptedModel& model)
      : options_(options),
        model_(model),
        answering_(options, model),
        is_terminal_(isatty(STDIN_FILENO) != 0 && !options.json),
        input_(is_terminal_, options.no_history ? std::filesystem::path() : default_chat_history()) {
    for (size_t i = 0; i < model.adapter_count(); ++i) {
      sides_.push_back({Conversation(options.system), CachedSequence()});
      speaking_.push_back(i);
    }
    const std::filesystem::path session = options.session, folder = session.parent_path();
    if (!folder.empty() && !std::filesystem::is_directory(folder))
      throw_user_error("--session {}: {} is no folder", session.string(), folder.string());
    if (!session.empty() && std::filesystem::exists(session)) take_up(read_session(session));
  }

  int run() {
    model_.load();
    answering_.begin();
    for (size_t i = 0; i < sides_.size(); ++i) sides_[i].memory = CachedSequence(model_.adapter(i));
    if (is_terminal_) greet();
    bool is_told_to_end = false;
    while (!is_told_to_end) {
      catch_interruption();
      const std::optional<std::string> said = input_.next();
      if (!said) break;
      if (said->empty()) continue;
      is_told_to_end = *said == "/exit" || *said == "/quit" || *said == "/bye";
      if (is_told_to_end) continue;
      try {
        hear(*said);
      } catch (const UserError& error) {  // too long for the context, refused by the template, no such command, …
        if (!is_terminal_) throw;
        write_to_standard_error(fmt::format("{}\n", error.what()));
      } catch (const SystemError& error) {  // the session cannot be kept
        if (!is_terminal_) throw;
        write_to_standard_error(fmt::format("{}\n", error.what()));
      }
    }
    if (is_terminal_ && !is_told_to_end) write_to_standard_error("\n");
    return asked_to_end() || input_.was_interrupted() ? stopped_exit_code : 0;
  }

 private:
  void greet() const {
    if (sides_.size() > 1) {
      fmt::print("Answers from");
      for (size_t i = 0; i < sides_.size(); ++i) fmt::print("{} {}", i > 0 ? "," : "", model_.name(i));
      fmt::print(".\n");
    }
    const size_t messages = sides_.front().conversation.messages().size();
    if (messages > 0 && !options_.session.empty()) fmt::print("Going on with {}: {}.\n", options_.session, counted(messages, "message"));
    fmt::print("Ctrl-C ends an answer; Ctrl-D ends the program; /help lists what else can be said.\n");
  }

  void take_up(SessionFile session) {
    for (size_t i = 0; i < sides_.size(); ++i) {
      const auto own = session.by_adapter.find(model_.name(i));
      if (session.of_all) sides_[i].conversation = *session.of_all;
      if (own != session.by_adapter.end()) sides_[i].conversation = own->second;
      if (options_.system) sides_[i].conversation.set_system(options_.system);
    }
    tools_ = tools_of(session);
    record_ = std::move(session.record);
    others_ = std::move(session.by_adapter);
    for (size_t i = 0; i < sides_.size(); ++i) others_.erase(model_.name(i));
  }

  void hear(const std::string& said) {
    if (said.starts_with('/')) return obey(said);
    const std::vector<Conversation> before = conversations();
    for (const size_t i : speaking_) sides_[i].conversation.say(said.starts_with(" /") ? said.substr(1) : said);
    retries_ = 0;
    answer(speaking_, before);
  }

  /// Only adapters that have answered do so again.
  void retry() {
    const std::vector<Conversation> before = conversations();
    std::vector<size_t> answered;
    for (const size_t i : speaking_) {
      if (sides_[i].conversation.take_back_answer()) answered.push_back(i);
    }
    if (answered.empty()) throw_user_error("/retry: there is no answer yet");
    ++retries_;
    answer(answered, before);
  }

  std::vector<Conversation> conversations() const {
    std::vector<Conversation> all;
    for (const Side& side : sides_) all.push_back(side.conversation);
    return all;
  }

  /// before: what the conversations of all sides are again where nothing can be answered.
  void answer(const std::vector<size_t>& speakers, const std::vector<Conversation>& before) {
    std::vector<Question> questions;
    bool may_go_on = false;
    try {
      for (const size_t i : speakers) {
        const size_t turn = sides_[i].conversation.messages().size();
        questions.push_back({i, turn, retries_, model_.chat_prompt(sides_[i].conversation.messages(), tools_), &sides_[i].memory});
      }
      const auto display = display_answers(options_.json ? AnswerStyle::json : AnswerStyle::text, questions, model_, false);
      const std::vector<Answer> answers = answering_.answer(questions, *display, static_cast<int64_t>(questions.size()));
      may_go_on = true;
      for (size_t i = 0; i < speakers.size(); ++i) sides_[speakers[i]].conversation.answer(answers[i].text);
      display->finish();
    } catch (...) {
      if (!may_go_on) {
        for (size_t i = 0; i < sides_.size(); ++i) sides_[i].conversation = before[i];
      }
      throw;
    }
    if (!options_.session.empty()) save(options_.session);
  }

  void save(const std::filesystem::path& path) const {
    SessionFile session;
    session.record = record_;
    session.by_adapter = others_;
    if (sides_.size() == 1 && others_.empty()) session.of_all = sides_.front().conversation;
    for (size_t i = 0; i < sides_.size() && !session.of_all; ++i) session.by_adapter[model_.name(i)] = sides_[i].conversation;
    write_session(path, session);
  }

  /// What is there and was not saved by this chat might be anything, training data among it, which look alike.
  void save_as(const std::filesystem::path& path) {
    const bool is_own = saved_.contains(path.string()) || path == options_.session;
    if (!is_own && std::filesystem::exists(path)) {
      throw_user_error("/save: {} is there already; name another file, or go on with it by --session", path.string());
    }
    save(path);
    saved_.insert(path.string());
  }

  void choose_speakers(const std::string& name) {
    std::vector<std::string> names;
    for (size_t i = 0; i < sides_.size(); ++i) names.push_back(model_.name(i));
    const auto found = std::ranges::find(names, name);
    if (found != names.end()) {
      speaking_ = {static_cast<size_t>(found - names.begin())};
    } else if (name == "all") {
      speaking_.clear();
      for (size_t i = 0; i < names.size(); ++i) speaking_.push_back(i);
    } else {
      const std::string near = nearest_name(name, names);
      throw_user_error("/adapter: `{}`: expected one of {}, all{}", name, fmt::join(names, ", "),
                       near.empty() ? "" : fmt::format("; did you mean `{}`?", near));
    }
  }

  void obey(const std::string& said) {
    const size_t space = std::min(said.find_first_of(" \n"), said.size());
    const std::string command = said.substr(0, space), rest = said.substr(std::min(space + 1, said.size()));
    if (!rest.empty() && (command == "/new" || command == "/retry" || command == "/undo" || command == "/help")) {
      throw_user_error("{}: takes nothing behind it, found `{}`", command, rest);
    }
    if (command == "/new") {
      for (const size_t i : speaking_) sides_[i].conversation.begin_anew();
    } else if (command == "/retry") {
      retry();
    } else if (command == "/undo") {
      bool done = false;
      for (const size_t i : speaking_) done |= sides_[i].conversation.undo();
      if (!done) throw_user_error("/undo: there is no message yet");
    } else if (command == "/system") {
      for (const size_t i : speaking_) sides_[i].conversation.set_system(rest.empty() ? std::nullopt : std::optional(rest));
    } else if (command == "/adapter") {
      choose_speakers(rest);
    } else if (command == "/save") {
      if (rest.empty()) throw_user_error("/save: expected the name of a file");
      save_as(rest);
      if (is_terminal_) fmt::print("kept in {}\n", rest);
    } else if (command == "/help") {
      fmt::print("{}", help);
    } else {
      throw_user_error("there is no command {}; /help lists them. A message that begins with / is written with a space before it", command);
    }
    if (command != "/help" && command != "/save" && command != "/adapter" && !options_.session.empty()) save(options_.session);
  }

  const GenerateOptions& options_;
  AdaptedModel& model_;
  Answering answering_;
  bool is_terminal_;
  ChatInput input_;
  std::vector<Side> sides_;                      ///< of each adapter
  std::vector<size_t> speaking_;                 ///< adapters that answer now
  std::map<std::string, Conversation> others_;   ///< of the session's file, of adapters that are not here
  nlohmann::ordered_json record_ = nlohmann::ordered_json::object();  ///< of the session's file, with what else stands in it
  nlohmann::ordered_json tools_;                 ///< of the record; null: none
  std::set<std::string> saved_;                  ///< files that /save has made
  uint64_t retries_ = 0;                         ///< of the newest message
};

}  // namespace

int chat(const GenerateOptions& options, AdaptedModel& model) {
  model.need_template("--chat");
  return Chat(options, model).run();
}

}  // namespace cotune
