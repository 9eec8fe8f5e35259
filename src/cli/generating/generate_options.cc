#include "cli/generating/generate_options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdint>
#include <limits>

#include "base/error.h"
#include "cli/terminal/number_checks.h"

namespace cotune {
namespace {

/// As the jobs file's seeds. The library alone would take larger numbers for the largest, and ones of base 8 and 16.
CLI::Validator seed_number() {
  const auto complaint = [](const std::string& text) -> std::string {
    uint64_t seed = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seed);
    const bool has_zero = text.size() > 1 && text.front() == '0';
    if (error == std::errc() && end == text.data() + text.size() && !has_zero) return "";
    return fmt::format("must be a whole number from 0 to {}, got {}", std::numeric_limits<uint64_t>::max(), text);
  };
  return CLI::Validator(complaint, "");
}

CLI::Range count_from(int64_t lowest) { return CLI::Range(lowest, int64_t{1} << 30); }

void add_prompt_options(CLI::App& command, GenerateOptions& to) {
  CLI::Option* prompt = command.add_option("--prompt", to.prompt, "The prompt");
  CLI::Option* file =
      command.add_option("--prompt-file", to.prompt_file,
                         "File with the prompt, less one final newline. Without any prompt, standard input is read so");
  CLI::Option* prompts =
      command.add_option("--prompts", to.prompts,
                         "File of many prompts: JSONL or Parquet with the fields of data files, or text, a prompt a line. "
                         "Answers are lines of JSON, in the order of the prompts");
  CLI::Option* output = command.add_option("--output", to.output, "File for the answers to --prompts; default: standard output");
  CLI::Option* resume = command.add_flag("--resume", to.resume, "Give the answers that --output lacks");
  CLI::Option* overwrite = command.add_flag("--overwrite", to.overwrite, "Begin --output anew");
  CLI::Option* at_once = command.add_option("--at-once", to.at_once, "Answers under way at once; default: as memory allows, at most 32")
                             ->check(count_from(1));
  CLI::Option* chat =
      command.add_flag("--chat", to.chat, "A conversation: every line of standard input gets an answer; /help lists what else can be said");
  CLI::Option* session =
      command.add_option("--session", to.session, "File that --chat goes on with, where it is there, and keeps the conversation in");
  CLI::Option* no_history =
      command.add_flag("--no-history", to.no_history,
                       "Do not keep what is typed into --chat at a terminal for the chats to come, nor offer what was typed in earlier ones");
  CLI::Option* system = command.add_option("--system", to.system, "System message of the chat template");
  CLI::Option* chat_template =
      command.add_option("--chat-template", to.chat_template,
                         "File with a Jinja template in place of the model's own: for adapters trained with data.chat_template");
  CLI::Option* raw = command.add_flag(
      "--raw", to.raw,
      "Continue the prompt as it is, without the chat template: for adapters trained on prompt and completion. Models "
      "without a template always do");
  CLI::Option* json = command.add_flag("--json", to.json, "Each answer as one JSON object on a line, with its adapter, tokens and time");
  CLI::Option* samples = command.add_option("--samples", to.samples, "Answers to each prompt, drawn with seeds of their own")
                             ->check(count_from(1))
                             ->capture_default_str();
  prompt->excludes(file)->excludes(chat)->excludes(prompts);
  file->excludes(chat)->excludes(prompts);
  prompts->excludes(chat)->excludes(json);
  output->needs(prompts);
  resume->needs(output)->excludes(overwrite);
  overwrite->needs(output);
  session->needs(chat);
  no_history->needs(chat);
  raw->excludes(chat)->excludes(system)->excludes(chat_template);
  samples->excludes(chat);
  at_once->excludes(chat);
}

}  // namespace

void add_generate_options(CLI::App& command, GenerateOptions& to) {
  add_model_options(command, to.model);
  add_prompt_options(command, to);
  command.add_option("--max-new-tokens", to.max_new_tokens, "Longest answer")->check(count_from(1))->capture_default_str();
  command
      .add_option("--stop", to.stop, "Text that ends an answer and is no part of it. Repeated: any of them")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->allow_extra_args(false)
      ->check([](const std::string& text) { return text.empty() ? std::string("must not be empty") : std::string(); });
  command
      .add_option("--temperature", to.temperature,
                  "0: always the likeliest token; above: drawn. Default 0, or 1 with --top-p, --top-k, --min-p, --seed or --samples")
      ->check(number_in(0.0, 100.0));
  command.add_option("--top-p", to.top_p, "Draw from the likeliest tokens that together have this probability")
      ->check(number_in(1e-6, 1.0));
  command.add_option("--top-k", to.top_k, "Draw from the k likeliest tokens")->check(count_from(1));
  command.add_option("--min-p", to.min_p, "Draw from tokens with at least this share of the likeliest one's probability")
      ->check(number_in(0.0, 1.0));
  command
      .add_option("--repetition-penalty", to.repetition_penalty,
                  "Above 1: tokens of the prompt and the answer so far become less likely, as in transformers; 1: none")
      ->check(number_in(0.01, 100.0));
  command.add_option("--seed", to.seed, "Equal seeds give equal answers; default 0")->check(seed_number());
}

SamplingSettings sampling_of(const GenerateOptions& options) {
  const bool drawn = options.top_p || options.top_k || options.min_p || options.seed || options.samples > 1;
  SamplingSettings settings;
  settings.temperature = options.temperature.value_or(drawn ? 1.0 : 0.0);
  if (settings.temperature == 0 && drawn) {
    throw_user_error("--temperature: 0 always takes the likeliest token, so --top-p, --top-k, --min-p, --seed and --samples have no "
                     "effect; leave them out or raise the temperature");
  }
  settings.top_p = options.top_p.value_or(1.0);
  settings.top_k = options.top_k.value_or(0);
  settings.min_p = options.min_p.value_or(0.0);
  settings.repetition_penalty = options.repetition_penalty.value_or(1.0);
  settings.seed = options.seed.value_or(0);
  return settings;
}

}  // namespace cotune
