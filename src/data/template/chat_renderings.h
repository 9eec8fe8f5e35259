/// The renderings of one chat: whole, in part, and without something. A chat of many messages is rendered up to each of its
/// answers, so that the work grows with the square of their number; all of it shares one number of steps.
#pragma once

#include <cstdint>
#include <ctime>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "data/template/jinja.h"

namespace cotune {

/// Bounds of what is rendered of one record.
struct ChatLimits {
  jinja::Limits rendering = {};
  uint64_t steps = 5'000'000'000;  ///< of all renderings together: minutes at the worst
};

class ChatRenderings {
 public:
  /// `chosen` and `special_tokens`, variables of the template, must outlive this. Bytes that come from message i have origin i + 1, but a
  /// role that is a plain lower-case word counts as template text; bytes of `tools` have origin -1.
  ChatRenderings(const jinja::Template& chosen, const std::map<std::string, std::string>& special_tokens,
                 const nlohmann::ordered_json& messages, const nlohmann::ordered_json& tools, const ChatLimits& limits,
                 const std::optional<std::tm>& now = std::nullopt);

  const std::string& template_name() const { return template_.name(); }

  /// Of the first `count` messages.
  /// All throw UserError when the template refuses the messages, and jinja::StepsSpent when the steps are used up, then in every later call too.
  jinja::Text first(size_t count, bool add_generation_prompt);
  /// Of all, with another message in the place of one.
  jinja::Text with(size_t index, const nlohmann::ordered_json& message);
  jinja::Text without_tools();

 private:
  /// The first `count` messages; takes a step for each.
  std::vector<jinja::Value> listed(size_t count);
  jinja::Text render(std::vector<jinja::Value> messages, jinja::Value tools, bool add_generation_prompt);
  [[noreturn]] void fail_spent();

  const jinja::Template& template_;
  const std::map<std::string, std::string>& special_tokens_;
  const ChatLimits limits_;
  uint64_t steps_left_;
  std::vector<jinja::Value> messages_;
  bool lacks_content_ = false;  ///< one of them
  jinja::Value tools_;
  const std::optional<std::tm> now_;  ///< what strftime_now sees
};

}  // namespace cotune
