#include "cli/generating/answer_display.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/abrupt_exit.h"
#include "base/counted.h"
#include "base/descriptor.h"
#include "base/error.h"
#include "base/json_text.h"
#include "watch/answer_panes.h"
#include "watch/terminal.h"

namespace cotune {
namespace {

constexpr auto between_frames = std::chrono::milliseconds(50);

/// Whatever signals come meanwhile.
void write_out(std::string_view text) {
  std::fflush(stdout);
  if (!write_all(STDOUT_FILENO, text)) throw SystemError(fmt::format("standard output: cannot be written: {}", std::strerror(errno)));
}

std::string cut_off_notice(const Answer& answer, const AdaptedModel& model) {
  if (answer.generated.stop == StopReason::max_new_tokens) {
    return fmt::format("(cut off after {}: --max-new-tokens)\n", counted(std::ssize(answer.generated.tokens), "token"));
  }
  if (answer.generated.stop == StopReason::context_length) {
    return fmt::format("(cut off: the model's context of {} tokens is full)\n", model.files().config.context_length);
  }
  return "";
}

/// Shared by all displays: what was asked, and answers that have ended.
class Display : public AnswerDisplay {
 public:
  Display(const std::vector<Question>& questions, const AdaptedModel& model)
      : questions_(questions), model_(model), answers_(questions.size()) {}

  void on_piece(size_t, const std::string&) override {}
  void on_end(size_t question, const Answer& answer) override { answers_[question] = answer; }
  void finish() override {
    for (size_t i = 0; i < answers_.size(); ++i) {
      if (answers_[i] && answers_[i]->generated.stop == StopReason::not_finite) model_.throw_not_finite(questions_[i].adapter);
    }
  }

 protected:
  std::vector<Question> questions_;
  const AdaptedModel& model_;
  std::vector<std::optional<Answer>> answers_;
};

class OneAnswer : public Display {
 public:
  using Display::Display;
  void on_piece(size_t, const std::string& piece) override { write_out(piece); }
  void finish() override {
    write_out("\n");
    Display::finish();
    if (answers_[0]) write_to_standard_error(cut_off_notice(*answers_[0], model_));
  }
};

class JsonAnswers : public Display {
 public:
  using Display::Display;
  void finish() override {
    for (size_t i = 0; i < answers_.size(); ++i) {
      if (answers_[i]) write_line(questions_[i], *answers_[i]);
    }
    Display::finish();
  }

 private:
  void write_line(const Question& question, const Answer& answer) const {
    nlohmann::ordered_json line;
    line["adapter"] = model_.name(question.adapter);
    line["sample"] = question.sample;
    line["text"] = answer.text;
    line["tokens"] = answer.generated.tokens;
    line["stop"] = to_string(answer.generated.stop);
    line["prompt_tokens"] = question.prompt.size();
    line["reused_prompt_tokens"] = answer.generated.reused_tokens;
    line["new_tokens"] = answer.generated.tokens.size();
    line["seconds"] = answer.seconds;
    write_out(text_of_json(line) + "\n");
  }
};

/// Blocks with headings, in order, as soon as they and those before them have ended.
class Blocks : public Display {
 public:
  Blocks(const std::vector<Question>& questions, const AdaptedModel& model, bool several_samples, bool several_adapters)
      : Display(questions, model) {
    for (const Question& question : questions) {
      std::string name = several_adapters || !several_samples ? model.name(question.adapter) : "";
      if (several_samples) name += fmt::format("{}sample {}", name.empty() ? "" : ", ", question.sample);
      names_.push_back(name);
    }
  }
  void on_end(size_t question, const Answer& answer) override {
    Display::on_end(question, answer);
    write_ended();
  }
  void finish() override {
    write_ended();
    Display::finish();
  }

 protected:
  void write_ended() {
    const bool bold = has_drawing_terminal() && wants_colour();
    for (; written_ < answers_.size() && answers_[written_]; ++written_) {
      const Answer& answer = *answers_[written_];
      const std::string heading = fmt::format("--- {} ---", names_[written_]);
      write_out((bold ? "\x1b[1m" + heading + "\x1b[0m" : heading) + "\n" + answer.text + (answer.text.ends_with('\n') ? "\n" : "\n\n"));
      const std::string notice = cut_off_notice(answer, model_);
      if (!notice.empty()) write_to_standard_error(names_[written_] + ": " + notice);
    }
  }
  std::vector<std::string> names_;

 private:
  size_t written_ = 0;
};

/// All of them on the terminal's other screen while they come; then as blocks.
class Panes : public Blocks {
 public:
  Panes(const std::vector<Question>& questions, const AdaptedModel& model, bool several_samples, bool several_adapters)
      : Blocks(questions, model, several_samples, several_adapters), terminal_(std::make_unique<Terminal>()) {
    for (const std::string& name : names_) panes_.push_back({name, "", false});
    draw();
  }
  ~Panes() override { leave(); }

  void on_piece(size_t question, const std::string& piece) override {
    panes_[question].text += piece;
    if (std::chrono::steady_clock::now() - drawn_at_ >= between_frames) draw();
  }
  void on_end(size_t question, const Answer& answer) override {
    Display::on_end(question, answer);
    panes_[question].has_ended = true;
    draw();
  }
  void finish() override {
    leave();
    Blocks::finish();
  }

 private:
  void leave() {
    if (terminal_ == nullptr) return;
    const std::string said = terminal_->messages();
    terminal_.reset();
    write_to_standard_error(said);
  }
  void draw() {
    drawn_at_ = std::chrono::steady_clock::now();
    const Terminal::Screen screen = terminal_->screen();
    if (screen == Terminal::Screen::away) return;
    const auto [columns, rows] = terminal_size();
    std::vector<std::string> lines = answer_panes(panes_, columns, rows, wants_colour(), shows_unicode());
    lines.resize(std::max(rows, lines.size()));
    std::string frame = screen == Terminal::Screen::anew ? "\x1b[2J\x1b[H" : "\x1b[H";
    for (size_t i = 0; i < lines.size(); ++i) frame += (i > 0 ? "\r\n\x1b[K" : "\x1b[K") + lines[i];
    terminal_->draw(frame);
  }

  std::unique_ptr<Terminal> terminal_;
  std::vector<AnswerPane> panes_;
  std::chrono::steady_clock::time_point drawn_at_;
};

}  // namespace

std::unique_ptr<AnswerDisplay> display_answers(AnswerStyle style, const std::vector<Question>& questions, const AdaptedModel& model,
                                               bool several_samples) {
  if (style == AnswerStyle::json) return std::make_unique<JsonAnswers>(questions, model);
  if (questions.size() == 1) return std::make_unique<OneAnswer>(questions, model);
  bool several_adapters = false;
  for (const Question& question : questions) several_adapters |= question.adapter != questions.front().adapter;
  if (has_live_terminal()) return std::make_unique<Panes>(questions, model, several_samples, several_adapters);
  return std::make_unique<Blocks>(questions, model, several_samples, several_adapters);
}

}  // namespace cotune
