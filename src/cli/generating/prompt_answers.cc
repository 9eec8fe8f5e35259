#include "cli/generating/prompt_answers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <optional>
#include <utility>

#include "base/abrupt_exit.h"
#include "base/counted.h"
#include "base/diagnostics.h"
#include "base/error.h"
#include "base/json_text.h"
#include "base/record_mistakes.h"
#include "cli/generating/answer_file.h"
#include "cli/generating/answering.h"
#include "cli/terminal/interruption.h"
#include "cli/terminal/status_line.h"
#include "console/early_stop.h"
#include "data/records/prompt_file.h"
#include "data/records/record_error.h"

namespace cotune {
namespace {

using nlohmann::ordered_json;

class PromptAnswers {
 public:
  PromptAnswers(const GenerateOptions& options, AdaptedModel& model) : options_(options), model_(model), answering_(options, model) {
    open_output();
    check_prompts();
  }

  int run() {
    if (to_do_ == 0) {
      answers_->finish();
      write_to_standard_error(all_ == 1 ? "the one answer is there\n" : fmt::format("all {} answers are there\n", all_));
      return 0;
    }
    model_.load();
    answering_.begin();
    catch_interruption();
    prompts_.emplace(options_.prompts);
    line_.emplace();
    QuestionSource source;
    source.next = [this] { return next(); };
    source.on_answer = [this](size_t number, const Answer& answer) { take(number, answer); };
    source.on_pass = [this](size_t under_way, int64_t new_tokens) {
      new_tokens_ = new_tokens;
      tell_progress(under_way);
    };
    answering_.answer(source, options_.at_once);
    const bool is_whole = done_ == to_do_;
    answers_->finish();
    line_->end_with(fmt::format("{}, {}", count_text(), rate_text()));
    if (not_finite_ > 0) {
      throw SystemError(
          fmt::format("{}: the model's output is not finite: its weights or the adapter's hold NaN or infinity", counted(not_finite_, "answer")));
    }
    if (is_whole) return 0;
    write_to_standard_error(fmt::format("interrupted: {} of {} are there{}\n", all_ - to_do_ + done_, counted(all_, "answer"),
                                        stored_ != nullptr ? "; --resume gives the rest" : ""));
    return stopped_exit_code;
  }

 private:
  struct Current {
    FilePrompt prompt;
    int64_t index = -1;
    std::vector<int32_t> tokens;
  };
  struct Asked {
    AnswerKey key;
    ordered_json record;
    size_t prompt_tokens = 0;
  };

  void open_output() {
    if (options_.output.empty()) {
      answers_ = std::make_unique<OrderedAnswers>(model_.adapter_count(), options_.samples, [](const std::string& line) {
        fmt::print("{}", line);
        std::fflush(stdout);
      });
      return;
    }
    std::error_code unknown;
    if (std::filesystem::equivalent(options_.output, options_.prompts, unknown)) {
      throw_user_error("--output: {} is the file of the prompts; name another one", options_.output);
    }
    std::vector<std::string> names;
    for (size_t i = 0; i < model_.adapter_count(); ++i) names.push_back(model_.name(i));
    using Start = StoredAnswers::Start;
    auto stored = std::make_unique<StoredAnswers>(options_.output,
                                                  options_.resume      ? Start::resume
                                                  : options_.overwrite ? Start::overwrite
                                                                       : Start::fresh,
                                                  names, AnswerOptions(options_, model_));
    if (stored->is_made_unknown()) {
      write_to_standard_error(fmt::format("{} is not there: whether the answers in {} were made with the same options is not known\n",
                                          options_file_of(options_.output).string(), options_.output));
    }
    stored_ = stored.get();
    answers_ = std::move(stored);
  }

  ordered_json system_message() const { return {{"role", "system"}, {"content", *options_.system}}; }

  std::vector<int32_t> tokens_of(const FilePrompt& prompt) const {
    if (!prompt.messages.is_null()) {
      model_.need_template("a prompt of messages");
      ordered_json messages = prompt.messages;
      if (options_.system && messages.front()["role"] != "system") messages.insert(messages.begin(), system_message());
      return model_.chat_prompt(messages, prompt.tools);
    }
    if (prompt.is_whole_text || options_.raw || model_.text().chat_template() == nullptr) return model_.plain_prompt(prompt.text);
    ordered_json messages = ordered_json::array();
    if (options_.system) messages.push_back(system_message());
    messages.push_back({{"role", "user"}, {"content", prompt.text}});
    return model_.chat_prompt(messages);
  }

  void check_prompts() {
    PromptFile file(options_.prompts);
    Diagnostics diagnostics;
    RecordMistakes mistakes(options_.prompts, diagnostics, file.unit());
    int64_t index = 0;
    for (;; ++index) {
      try {
        const std::optional<FilePrompt> prompt = file.next();
        if (!prompt) break;
        check_prompt(*prompt, index, mistakes);
      } catch (const UserMistakes& error) {
        for (const Diagnostic& mistake : error.items()) mistakes.add(mistake.line, mistake.field, mistake.message);
      }
    }
    mistakes.finish();
    diagnostics.throw_if_any();
    tell_left_out(index);
    if (with_special_texts_ > 0) {
      write_to_standard_error(fmt::format("{}: {} of {} hold texts of special tokens, such as `{}`, which are plain characters here: "
                                          "chats as `messages` are framed by the model's template\n",
                                          options_.prompts, with_special_texts_, counted(index, "prompt"), special_text_));
    }
    if (all_ == 0) throw_user_error("{}: holds no prompts", options_.prompts);
    if (stored_ != nullptr) stored_->check_range(index, options_.samples);
  }

  void check_prompt(const FilePrompt& prompt, int64_t index, RecordMistakes& mistakes) {
    const auto mistake = [&](const std::string& field, const std::string& text) {
      mistakes.add(prompt.line, field, text);
    };
    for (const char* field : answer_fields) left_out_[field] += prompt.record.contains(field);
    if (prompt.messages.is_null()) look_for_special_text(prompt.text);
    if (prompt.only_raw && !options_.raw && model_.text().chat_template() != nullptr) {
      mistake("text", "goes on as it stands under --raw alone; what is said to the model by its chat template is a `prompt`");
    }
    if (options_.raw && !prompt.messages.is_null()) mistake("messages", "--raw has no effect on a chat; leave it out");
    if (options_.system && prompt.is_whole_text) mistake("instruction", "--system has no effect on a prompt without a template; leave it out");
    try {
      const std::vector<int32_t> tokens = tokens_of(prompt);
      const auto count = std::ssize(tokens);
      const ModelConfig& config = model_.files().config;
      const int64_t context = config.context_length;
      const auto foreign = std::ranges::find_if(tokens, [&](int32_t token) { return token >= config.vocabulary_size; });
      if (foreign != tokens.end()) {
        mistake("", fmt::format("holds token {}, but the model's vocabulary has {} tokens", *foreign, config.vocabulary_size));
      }
      if (count == 0) mistake("", "the prompt is empty");
      if (count >= context)
        mistake("", fmt::format("the prompt has {}; the model's context holds {}, an answer included", counted(count, "token"), context));
    } catch (const std::exception& error) {
      mistake("", complaint_of(error));
    }
    for (AnswerKey key{index, 0, 0}; key.adapter < model_.adapter_count(); ++key.adapter) {
      for (key.sample = 0; key.sample < options_.samples; ++key.sample) {
        ++all_;
        if (stored_ == nullptr || !stored_->holds(key)) {
          ++to_do_;
        } else {
          stored_->check(key, prompt.record);
        }
      }
    }
  }

  void look_for_special_text(const std::string& text) {
    const std::vector<SpecialMatch> matches = model_.text().encoder().find_special(text);
    const auto special = std::ranges::find_if(matches, &SpecialMatch::is_special);
    if (special != matches.end() && ++with_special_texts_ == 1) special_text_ = text.substr(special->begin, special->end - special->begin);
  }

  void tell_left_out(int64_t records) const {
    for (const auto& [field, count] : left_out_) {
      if (count == 0) continue;
      write_to_standard_error(fmt::format("{}: the field {} of {} of its {} is not carried along: answers have a field of that name\n",
                                          options_.prompts, field, count, counted(records, "record")));
    }
  }

  /// Moves on to the next answer that is to be given; false at the end.
  bool advance() {
    do {
      if (current_.index >= 0 && ++key_.sample < options_.samples) continue;
      key_.sample = 0;
      if (current_.index >= 0 && ++key_.adapter < model_.adapter_count()) continue;
      key_.adapter = 0;
      std::optional<FilePrompt> prompt = prompts_->next();
      if (!prompt) return false;
      current_ = {std::move(*prompt), current_.index + 1, {}};
      key_.index = current_.index;
    } while (stored_ != nullptr && stored_->holds(key_));
    if (current_.tokens.empty()) current_.tokens = tokens_of(current_.prompt);
    return true;
  }

  std::optional<Question> next() {
    if (!advance()) return std::nullopt;
    asked_.emplace(begun_++, Asked{key_, current_.prompt.record, current_.tokens.size()});
    return Question{key_.adapter, static_cast<uint64_t>(key_.index), static_cast<uint64_t>(key_.sample), current_.tokens, nullptr};
  }

  void take(size_t number, const Answer& answer) {
    const Asked asked = std::move(asked_.extract(number).mapped());
    ++done_;
    not_finite_ += answer.generated.stop == StopReason::not_finite;
    ordered_json line{{"index", asked.key.index}};
    for (const auto& [field, value] : asked.record.items()) {
      if (!left_out_.contains(field)) line[field] = value;
    }
    line["adapter"] = model_.name(asked.key.adapter);
    line["sample"] = asked.key.sample;
    line["text"] = answer.text;
    line["stop"] = to_string(answer.generated.stop);
    line["prompt_tokens"] = asked.prompt_tokens;
    line["new_tokens"] = answer.generated.tokens.size();
    answers_->add(asked.key, text_of_json(line) + "\n");
  }

  void tell_progress(size_t under_way) {
    if (!line_->is_due()) return;
    line_->show(fmt::format("{}, {} under way, {}{}", count_text(), under_way, rate_text(), line_->time_left(done_, to_do_)));
  }
  std::string count_text() const { return fmt::format("{} of {}", all_ - to_do_ + done_, counted(all_, "answer")); }
  std::string rate_text() const { return fmt::format("{:.0f} tokens/s", static_cast<double>(new_tokens_) / std::max(line_->seconds(), 1e-3)); }

  const GenerateOptions& options_;
  AdaptedModel& model_;
  Answering answering_;
  std::unique_ptr<AnswerFile> answers_;
  StoredAnswers* stored_ = nullptr;  ///< answers_, where it is a file
  std::optional<PromptFile> prompts_;
  Current current_;
  AnswerKey key_;
  std::map<std::string, int64_t, std::less<>> left_out_;  ///< records with a field that answers have, by its name
  std::map<size_t, Asked> asked_;  ///< by number
  size_t begun_ = 0;
  int64_t with_special_texts_ = 0;  ///< prompts in which texts of special tokens are plain characters
  std::string special_text_;        ///< such a text of the first
  int64_t all_ = 0, to_do_ = 0, done_ = 0, not_finite_ = 0, new_tokens_ = 0;
  std::optional<StatusLine> line_;  ///< from the first pass on
};

}  // namespace

int answer_prompts(const GenerateOptions& options, AdaptedModel& model) { return PromptAnswers(options, model).run(); }

}  // namespace cotune
