#include "cli/evaluating/evaluate_options.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "cli/manual/command_description.h"
#include "jobs/option_table.h"
#include "jobs/option_value.h"

namespace cotune {
namespace {

/// Options of the jobs file's section `data` that say how files are read.
constexpr const char* reading_options[] = {"format",          "chat_template",  "max_length",  "truncation",
                                           "train_on_prompt", "special_tokens", "max_examples"};

void add_reading_options(CLI::App& command, EvaluateOptions& to, CLI::Option* data) {
  for (const char* key : reading_options) {
    const Option& option = *find_option(Section::data, key);
    const bool is_truth = option.accepted.type == OptionType::boolean;  // without a value: true
    const auto check = [&option, is_truth](const std::string& text) {
      if (is_truth && text.empty()) return std::string();
      const auto value = read_option_value(option, YAML::Node(text), true);
      const auto* mistake = std::get_if<ValueMistake>(&value);
      return mistake == nullptr ? std::string() : mistake->message;
    };
    CLI::Option* added = command.add_option_function<std::string>(
        reading_option(key), [&to, key](const std::string& text) { to.data_options[key] = text.empty() ? "true" : text; },
        meaning(option) + " As in the jobs file");
    added->check(CLI::Validator(check, ""))->needs(data);
    added->type_name(is_truth ? value_type({"true", "false"}) : value_type(option.accepted));
    if (is_truth) added->expected(0, 1);
  }
}

/// Takes white space at both ends of a text away.
CLI::Validator trimmed() {
  const auto trim = [](std::string& text) -> std::string {
    text = comparable_text(text, {});
    return text.empty() ? "must not be empty" : "";
  };
  return CLI::Validator(trim, "");
}

}  // namespace

std::string reading_option(std::string key) {
  std::ranges::replace(key, '_', '-');
  return "--" + key;
}

void add_evaluate_options(CLI::App& command, EvaluateOptions& to) {
  add_model_options(command, to.model);
  CLI::Option* adapters = command.get_option("--adapter");
  CLI::Option* run =
      command.add_option("--run", to.run, "A run's folder: every job's adapter on the job's own held-out examples, as the run split them");
  CLI::Option* data =
      command.add_option("--data", to.data,
                         "File of examples, as data files of jobs are: losses. Or of questions with choices: which choice is "
                         "likeliest. Repeated: one after the other");
  data->expected(1)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)->allow_extra_args(false);
  run->excludes(data)->excludes(adapters);
  add_reading_options(command, to, data);
  command.add_flag("!--no-base", to.base, "Leave the model without an adapter out of the table");
  CLI::Option* exact =
      command.add_flag("--exact-match", to.exact_match,
                       "Also answer every example greedily, and compare with its last answer, less white space at both ends");
  command.add_flag("--ignore-case", to.match.ignore_case, "Compare without regard to case (ASCII)")->needs(exact);
  command.add_flag("--ignore-punctuation", to.match.ignore_punctuation, "Compare without punctuation (ASCII)")->needs(exact);
  command.add_option("--max-new-tokens", to.max_new_tokens, "Longest answer of --exact-match")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30))
      ->capture_default_str()
      ->needs(exact);
  command.add_option("--stop", to.stop, "Text that ends an answer of --exact-match and is no part of it. Repeated: any of them")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->allow_extra_args(false)
      ->needs(exact);
  command.add_option("--at-once", to.at_once, "Answers of --exact-match under way at once; default: as memory allows, at most 32")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30))
      ->needs(exact);
  command
      .add_option(
          "--choices", to.choices,
          "Also the likeliest of these texts, with commas (and white space) between them, as the last answer of every example: positive,negative")
      ->delimiter(',')
      ->transform(trimmed())
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->allow_extra_args(false);
  CLI::Option* raw = command.add_flag("--raw", to.raw, "Questions with choices stand as they are, without the chat template");
  raw->needs(data);
  command.add_option("--delimiter", to.delimiter, "Between a question as it is and a choice; default a space")->needs(data);
  command.add_option("--answers", to.answers, "File for what was answered or chosen to each example, a line of JSON each");
  command.add_flag("--json", to.json, "A line of JSON for every adapter and file in place of tables");
}

}  // namespace cotune
