#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "base/error.h"
#include "base/file.h"
#include "base/utf8.h"
#include "cli/commands.h"
#include "cli/generating/answer_display.h"
#include "cli/generating/answering.h"
#include "cli/generating/chat_session.h"
#include "cli/generating/generate_options.h"
#include "cli/generating/prompt_answers.h"
#include "cli/inputs/adapted_model.h"
#include "cli/terminal/interruption.h"
#include "console/command_line.h"
#include "console/early_stop.h"
#include "data/records/conversation.h"

namespace cotune {
namespace {

/// What an editor put around the text: a byte order mark, the end of the last line.
std::string text_alone(std::string text) {
  if (text.starts_with(byte_order_mark)) text.erase(0, byte_order_mark.size());
  if (text.ends_with('\n')) text.pop_back();
  if (text.ends_with('\r')) text.pop_back();
  return text;
}

std::string one_prompt(const GenerateOptions& options) {
  if (options.prompt) return *options.prompt;
  if (!options.prompt_file.empty()) return text_alone(read_file(options.prompt_file));
  if (isatty(STDIN_FILENO) != 0) {
    throw_user_error("there is no prompt: pass --prompt, --prompt-file, --prompts or --chat, or pipe a text in");
  }
  std::string text;
  char buffer[1 << 16];
  while (const size_t count = std::fread(buffer, 1, sizeof buffer, stdin)) text.append(buffer, count);
  if (text.empty()) {
    throw_user_error("there is no prompt: standard input is empty; pass --prompt, --prompt-file, --prompts or --chat, or pipe a text in");
  }
  return text_alone(std::move(text));
}

int answer_once(const GenerateOptions& options, AdaptedModel& model) {
  const std::string prompt = one_prompt(options);
  std::vector<int32_t> tokens;
  if (options.raw || model.text().chat_template() == nullptr) {
    tokens = model.plain_prompt(prompt);
  } else {
    Conversation conversation(options.system);
    conversation.say(prompt);
    tokens = model.chat_prompt(conversation.messages());
  }
  std::vector<Question> questions;
  for (size_t adapter = 0; adapter < model.adapter_count(); ++adapter) {
    for (int64_t sample = 0; sample < options.samples; ++sample)
      questions.push_back({adapter, 0, static_cast<uint64_t>(sample), tokens, nullptr});
  }
  Answering answering(options, model);
  model.load();
  answering.begin();
  catch_interruption();
  const auto display = display_answers(options.json ? AnswerStyle::json : AnswerStyle::text, questions, model, options.samples > 1);
  answering.answer(questions, *display, options.at_once);
  display->finish();
  return interrupted() ? stopped_exit_code : 0;
}

int generate(const GenerateOptions& options) {
  sampling_of(options);
  use_threads(options.model);
  AdaptedModel model(options.model.model, named_adapters(options.model.adapters), options.model.dtype, options.model.device);
  if (!options.chat_template.empty()) model.use_template(options.chat_template);
  if (options.system) model.need_template("--system");
  if (options.chat) return chat(options, model);
  return options.prompts.empty() ? answer_once(options, model) : answer_prompts(options, model);
}

}  // namespace

void add_generate_command(CLI::App& app) {
  auto options = std::make_shared<GenerateOptions>();
  CLI::App* command = app.add_subcommand(
      "generate",
      "Complete texts and chats, with the base model or adapters, several of them together. An answer goes to standard output as "
      "it comes");
  add_generate_options(*command, *options);
  command->callback([options] { exit_code() = generate(*options); });
}

}  // namespace cotune
