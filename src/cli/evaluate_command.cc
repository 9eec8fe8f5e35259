#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <optional>

#include "base/abrupt_exit.h"
#include "base/atomic_file.h"
#include "base/error.h"
#include "base/json_text.h"
#include "cli/commands.h"
#include "cli/evaluating/evaluate_options.h"
#include "cli/evaluating/evaluated_run.h"
#include "cli/evaluating/evaluation.h"
#include "cli/inputs/adapted_model.h"
#include "cli/terminal/interruption.h"
#include "console/command_line.h"
#include "console/early_stop.h"
#include "console/output_file.h"
#include "watch/terminal.h"

namespace cotune {
namespace {

void check_options(const EvaluateOptions& options) {
  if (options.run.empty() && options.data.empty()) {
    throw_user_error("there is nothing to evaluate on: pass --data FILE, or --run DIR for the held-out examples of its jobs");
  }
  if (options.choices.size() == 1) throw_user_error("--choices: expected at least two texts, found `{}`", options.choices.front());
}

std::vector<NamedAdapter> adapters_of(const EvaluateOptions& options) {
  std::vector<NamedAdapter> adapters = named_adapters(options.model.adapters);
  const auto base = std::ranges::find_if(adapters, [](const NamedAdapter& adapter) { return adapter.folder.empty(); });
  if (!options.base) {
    if (base != adapters.end()) throw_user_error("--no-base: leaves out what --adapter base asks for; give one of them");
    if (adapters.empty()) throw_user_error("--no-base: leaves nothing to evaluate: pass --adapter");
    return adapters;
  }
  if (base == adapters.end()) {
    adapters.insert(adapters.begin(), {base_name, {}});
  } else {
    std::rotate(adapters.begin(), base, base + 1);
  }
  return adapters;
}

void print(const std::vector<EvaluationResult>& results, bool json) {
  const size_t columns = ::isatty(STDOUT_FILENO) != 0 ? terminal_size().first : std::string::npos;
  for (size_t i = 0; i < results.size(); ++i) {
    if (json) {
      for (const auto& line : result_lines(results[i])) fmt::print("{}\n", text_of_json(line));
    } else {
      fmt::print("{}{}", i > 0 ? "\n" : "", result_table(results[i], shows_unicode(), columns));
    }
  }
}

int evaluate(const EvaluateOptions& options) {
  check_options(options);
  if (!options.answers.empty()) check_output("--answers", options.answers, evaluation_output);
  use_threads(options.model);
  std::optional<EvaluatedRun> run;
  std::optional<AdaptedModel> model;
  if (!options.run.empty()) {
    run = open_evaluated_run(options.run, options.base);
    model.emplace(model_of_run(*run, options.model), run->adapters, dtype_of_run(*run, options.model), options.model.device);
  } else {
    model.emplace(options.model.model, adapters_of(options), options.model.dtype, options.model.device);
  }
  if (options.exact_match || !options.choices.empty()) model->text().tokenizer();
  const std::vector<EvaluatedData> data = run ? read_held_out(*run, options, *model) : read_evaluated_data(options, *model);
  const bool has_answers =
      options.exact_match || std::ranges::any_of(data, [](const EvaluatedData& set) { return !set.questions.tokens.empty(); });
  if (!options.answers.empty() && !has_answers) {
    throw_user_error(
        "--answers: nothing is answered or chosen: the data hold no questions with choices, and neither --exact-match nor --choices is "
        "given");
  }
  model->load();
  catch_interruption();
  std::optional<AtomicFile> answers;
  std::function<void(const std::string&)> write;
  if (!options.answers.empty()) {
    answers.emplace(where_link_leads(options.answers));
    write = [&](const std::string& line) { answers->append(line); };
  }
  const auto evaluated = evaluate_all(options, *model, data, write);
  if (!evaluated) {
    write_to_standard_error("interrupted: nothing was written\n");
    return stopped_exit_code;
  }
  print(evaluated->results, options.json);
  if (answers) answers->commit();
  if (!evaluated->not_finite.empty()) model->throw_not_finite(*evaluated->not_finite.begin());
  return 0;
}

}  // namespace

void add_evaluate_command(CLI::App& app) {
  auto options = std::make_shared<EvaluateOptions>();
  CLI::App* command = app.add_subcommand(
      "evaluate",
      "Loss, perplexity, exact match and multiple choice of the base model and of adapters, all in one pass: a table before and after");
  add_evaluate_options(*command, *options);
  command->callback([options] { exit_code() = evaluate(*options); });
}

}  // namespace cotune
