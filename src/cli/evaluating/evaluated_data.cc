#include "cli/evaluating/evaluated_data.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>

#include "base/abrupt_exit.h"
#include "base/counted.h"
#include "base/diagnostics.h"
#include "base/error.h"
#include "base/record_mistakes.h"
#include "cli/inputs/data_reading.h"
#include "cli/inputs/run_setup.h"
#include "data/continuations.h"
#include "data/example_builder.h"
#include "data/records/data_file.h"
#include "data/records/jsonl.h"
#include "data/records/record_error.h"
#include "evaluate/choice_record.h"
#include "evaluate/last_answer.h"
#include "jobs/option_table.h"
#include "jobs/option_value.h"

namespace cotune {
namespace {

DataSpec data_spec(const EvaluateOptions& options) {
  JobSpec job;
  for (const auto& [key, text] : options.data_options) {
    const Option& option = *find_option(Section::data, key);
    option.set({.job = &job}, std::get<OptionValue>(read_option_value(option, YAML::Node(text), true)));
  }
  return job.data;
}

/// Whether the first record has choices; false where it cannot be read: whoever reads the file says why.
bool holds_choices(const std::string& path) {
  std::vector<std::string> fields = record_fields();
  fields.insert(fields.end(), choice_fields().begin(), choice_fields().end());
  try {
    DataFile file(path, fields);
    return file.lines().next() && has_choices(parse_json_line(file.lines().text()));
  } catch (const std::runtime_error&) {
    return false;
  }
}

/// Tokens of a choice behind a text as lm-evaluation-harness cuts them: spaces at the text's end belong to the choice, and the tokens are
/// those of the whole behind as many as the text has by itself.
TokenizedChoices tokens_behind_text(const AdaptedModel& model, std::string text, const ChoiceRecord& record, const std::string& delimiter) {
  const size_t end = text.find_last_not_of(" \t\n\r") + 1;
  const std::string between = text.substr(end) + delimiter;
  text.resize(end);
  TokenizedChoices tokens{model.plain_prompt(text), {}};
  for (const std::string& choice : record.choices) {
    const std::vector<int32_t> whole = model.plain_prompt(text + between + choice);
    tokens.choices.emplace_back(whole.begin() + static_cast<std::ptrdiff_t>(std::min(tokens.question.size(), whole.size())), whole.end());
  }
  return tokens;
}

TokenizedChoices tokenized(Continuations found) {
  return {std::move(found.prompt), std::move(found.continuations)};
}

TokenizedChoices tokens_of(const AdaptedModel& model, const ChoiceRecord& record, const EvaluateOptions& options) {
  const bool is_chat = !record.messages.is_null();
  if (is_chat && options.raw) throw RecordError("messages", "--raw has no effect on a chat; leave it out");
  if (!is_chat && (options.raw || model.text().chat_template() == nullptr)) {
    return tokens_behind_text(model, record.text, record, options.delimiter.value_or(" "));
  }
  model.need_template("a question of messages");
  nlohmann::ordered_json messages = record.messages;
  if (!is_chat) messages = {{{"role", "user"}, {"content", record.text}}};
  std::vector<std::string> answers;
  for (const std::string& choice : record.choices) answers.push_back(options.delimiter.value_or("") + choice);
  return tokenized(continue_chat(*model.text().chat_template(), messages, answers, model.text().encoder()));
}

void check_vocabulary(const std::string& field, std::span<const int32_t> tokens, int64_t vocabulary) {
  for (const int32_t token : tokens) {
    if (token >= vocabulary) throw RecordError(field, fmt::format("holds token {}, but the model's vocabulary has {} tokens", token, vocabulary));
  }
}

/// That the model can take them.
void check_tokens(const TokenizedChoices& tokens, const ModelConfig& config) {
  if (tokens.question.empty()) throw RecordError("", "the question has no tokens");
  check_vocabulary("", tokens.question, config.vocabulary_size);
  for (size_t i = 0; i < tokens.choices.size(); ++i) check_vocabulary(fmt::format("choices[{}]", i), tokens.choices[i], config.vocabulary_size);
  const int64_t context = config.context_length;
  for (size_t i = 0; i < tokens.choices.size(); ++i) {
    if (tokens.choices[i].empty()) throw RecordError(fmt::format("choices[{}]", i), "has no tokens of its own behind the question");
    const size_t length = tokens.question.size() + tokens.choices[i].size();
    if (static_cast<int64_t>(length) > context) {
      throw RecordError(fmt::format("choices[{}]", i),
                        fmt::format("has {} with its question; the model's context holds {}", counted(length, "token"), context));
    }
  }
}

void add(TokenizedChoices tokens, std::vector<std::string> texts, size_t answer, int line, ChoiceQuestions& questions) {
  questions.tokens.push_back(std::move(tokens));
  questions.texts.push_back(std::move(texts));
  questions.answers.push_back(answer);
  questions.lines.push_back(line);
}

ChoiceQuestions read_questions(const std::string& path, const EvaluateOptions& options, const AdaptedModel& model, Diagnostics& diagnostics) {
  ChoiceQuestions questions;
  DataFile file(path, choice_fields());
  RecordLines& lines = file.lines();
  RecordMistakes mistakes(path, diagnostics, lines.unit());
  const auto take = [&] {
    try {
      if (lines.too_long()) throw RecordError("", lines.too_long_complaint());
      ChoiceRecord record = choice_record_of(parse_json_line(lines.text()));
      TokenizedChoices tokens = tokens_of(model, record, options);
      check_tokens(tokens, model.files().config);
      add(std::move(tokens), std::move(record.choices), record.answer, lines.line(), questions);
    } catch (const RecordError& error) {
      mistakes.add(lines.line(), error.field(), error.what());
    } catch (const std::exception& error) {
      mistakes.add(lines.line(), "", complaint_of(error));
    }
  };
  try {
    while (lines.next()) take();
    if (file.is_broken()) throw UserError("cannot read the file to its end");
  } catch (const UserError& error) {
    diagnostics.add(path, 0, "", error.what());
  }
  mistakes.finish();
  return questions;
}

/// The examples of `like`, in its order, as `read` has them, by file and line; without those that it lacks.
Dataset same_examples(const Dataset& like, const JobData& read) {
  using Place = std::pair<std::string_view, int>;
  std::map<Place, std::optional<Example>> found;
  for (int64_t i = 0; i < like.size(); ++i) found.try_emplace(Place(like.source(i), like.line(i)));
  for (const Dataset* set : {&read.train, &read.eval}) {
    for (int64_t i = 0; i < set->size(); ++i) {
      const auto place = found.find(Place(set->source(i), set->line(i)));
      if (place != found.end()) place->second = set->example(i);
    }
  }
  Dataset same;
  for (int64_t i = 0; i < like.size(); ++i) {
    const std::string& source = like.source(i);
    const std::optional<Example>& example = found.at(Place(source, like.line(i)));
    if (!example) continue;
    if (same.empty() || same.source(same.size() - 1) != source) same.begin_source(source);
    same.add(*example);
  }
  return same;
}

/// Adds mistakes where examples that were read from these files have no answers, or nothing before them.
void check_answerable(const std::vector<FileReport>& files, const Dataset& answered, Diagnostics& mistakes) {
  const size_t before = mistakes.size();
  for (const FileReport& file : files) {
    if (file.format == DataFormat::text)
      mistakes.add(file.file, 0, "", "plain text has no answers, which --exact-match and --choices need");
  }
  const auto has_tokens = [&](const std::string& source) {
    return std::ranges::any_of(files, [&](const FileReport& file) { return file.file == source && file.format == DataFormat::tokens; });
  };
  for (int64_t i = 0; i < answered.size() && mistakes.size() == before; ++i) {
    const std::optional<LastAnswer> last = last_answer_of(answered, i);
    if (!last) {
      mistakes.add(answered.source(i), answered.line(i), "",
                   "nothing stands before what is learned: --exact-match and --choices need a prompt");
    } else if (last->prompt.size() == 1 && has_tokens(answered.source(i))) {
      mistakes.add(answered.source(i), answered.line(i), "labels",
                   "all tokens but the first are learned: --exact-match and --choices cannot tell an answer from its prompt; a prompt has the "
                   "label -100");
    }
  }
}

}  // namespace

ChoiceQuestions questions_of(const Dataset& answered, const EvaluateOptions& options, const AdaptedModel& model, Diagnostics& diagnostics) {
  ChoiceQuestions questions;
  std::map<std::string, RecordMistakes> mistakes;
  for (int64_t i = 0; i < answered.size(); ++i) {
    try {
      const std::optional<LastAnswer> last = last_answer_of(answered, i);
      const std::string answer = model.answer_text(last->answer);
      const auto right = std::ranges::find_if(options.choices, [&](const std::string& choice) { return is_match(choice, answer, {}); });
      if (right == options.choices.end()) {
        throw RecordError("", fmt::format("--choices: expected one of {} as the answer, found `{}`", fmt::join(options.choices, ", "),
                                          comparable_text(answer, {}).substr(0, 80)));
      }
      TokenizedChoices tokens = tokenized(continue_example(last->prompt, last->answer, options.choices, model.text().encoder()));
      check_tokens(tokens, model.files().config);
      add(std::move(tokens), options.choices, static_cast<size_t>(right - options.choices.begin()), answered.line(i), questions);
    } catch (const RecordError& error) {
      const std::string& source = answered.source(i);
      mistakes.try_emplace(source, source, diagnostics, "example").first->second.add(answered.line(i), error.field(), error.what());
    }
  }
  for (auto& [source, of_source] : mistakes) of_source.finish();
  return questions;
}

Dataset answered_examples(const JobSpec& job, const JobData& read, Dataset JobData::*part, const EvaluateOptions& options,
                          const AdaptedModel& model, const DataReading& reading, Diagnostics& mistakes) {
  if (!options.exact_match && options.choices.empty()) return {};
  if (!job.data.train_on_prompt) {
    check_answerable(read.files, read.*part, mistakes);
    return read.*part;
  }
  JobSpec answers_alone = job;
  answers_alone.data.train_on_prompt = false;
  const JobData again = read_data(answers_alone, model.text(), model.files().config, reading, mistakes);
  Dataset answered = same_examples(read.*part, again);
  check_answerable(again.files, answered, mistakes);
  if (answered.size() != (read.*part).size()) {
    mistakes.add((read.*part).source(0), 0, "",
                 fmt::format("{} of {} have no answer within data.max_length, which --exact-match and --choices need",
                             (read.*part).size() - answered.size(), counted((read.*part).size(), "example")));
  }
  return answered;
}

std::vector<EvaluatedData> read_evaluated_data(const EvaluateOptions& options, const AdaptedModel& model) {
  std::vector<EvaluatedData> all;
  Diagnostics mistakes;
  RunSpec run;
  run.threads = options.model.threads;
  const DataReading reading(run);
  for (const std::string& path : options.data) {
    EvaluatedData& data = all.emplace_back();
    data.name = path;
    data.adapters.resize(model.adapter_count());
    std::iota(data.adapters.begin(), data.adapters.end(), 0);
    if (holds_choices(path)) {
      if (options.exact_match || !options.choices.empty()) {
        mistakes.add(path, 0, "", "holds questions with choices of their own; --exact-match and --choices are for examples with answers");
        continue;
      }
      if (!options.data_options.empty()) {
        mistakes.add(path, 0, "",
                     fmt::format("holds questions with choices, on which {} has no effect", reading_option(options.data_options.begin()->first)));
        continue;
      }
      data.questions = read_questions(path, options, model, mistakes);
      continue;
    }
    if (options.raw || options.delimiter) {
      mistakes.add(path, 0, "",
                   fmt::format("holds examples, on which {} has no effect; it is for questions with choices of their own",
                               options.raw ? "--raw" : "--delimiter"));
      continue;
    }
    JobSpec job;
    job.name = path;
    job.data = data_spec(options);
    job.data.train = {{path}};
    const size_t before = mistakes.size();
    JobData read = read_data(job, model.text(), model.files().config, reading, mistakes);
    data.answered = answered_examples(job, read, &JobData::train, options, model, reading, mistakes);
    for (const FileReport& file : read.files) {
      if (file.truncated + file.dropped_long + file.dropped_unlearned > 0) write_to_standard_error(file.to_string() + "\n");
      for (const std::string& warning : file.warnings()) write_to_standard_error(warning + "\n");
    }
    data.examples = std::move(read.train);
    if (!options.choices.empty() && mistakes.size() == before) data.questions = questions_of(data.answered, options, model, mistakes);
  }
  mistakes.throw_if_any();
  return all;
}

}  // namespace cotune
