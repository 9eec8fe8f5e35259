#include "cli/evaluating/evaluation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "base/error.h"
#include "base/json_text.h"
#include "cli/generating/answering.h"
#include "cli/terminal/interruption.h"
#include "cli/terminal/status_line.h"
#include "evaluate/choice_score.h"
#include "evaluate/held_out_loss.h"
#include "evaluate/last_answer.h"

namespace cotune {
namespace {

using nlohmann::ordered_json;
using Write = std::function<void(const std::string& line)>;

/// What has been done of one kind of work.
class Progress {
 public:
  explicit Progress(std::string what) : what_(std::move(what)) {}
  void tell(int64_t done, int64_t all) {
    if (line_.is_due()) line_.show(fmt::format("{}: {} of {}{}", what_, done, all, line_.time_left(done, all)));
  }

 private:
  std::string what_;
  StatusLine line_;
};

class Evaluation {
 public:
  Evaluation(const EvaluateOptions& options, const AdaptedModel& model, const std::vector<EvaluatedData>& data, const Write& write)
      : options_(options), model_(model), data_(data), write_(write) {
    for (const EvaluatedData& set : data) {
      EvaluationResult& result = results_.emplace_back();
      result.data = set.name;
      result.examples = set.examples.empty() ? static_cast<int64_t>(set.questions.tokens.size()) : set.examples.size();
      for (const size_t adapter : set.adapters) result.adapters.push_back({model.name(adapter), {}});
    }
  }

  bool run() { return measure_losses() && (!options_.exact_match || measure_answers()) && measure_choices(); }
  Evaluated take() { return {std::move(results_), not_finite_}; }

 private:
  bool measure_losses() {
    std::vector<EvaluationPair> pairs;
    for (const EvaluatedData& set : data_) {
      for (const size_t adapter : set.adapters) {
        if (!set.examples.empty()) pairs.push_back({model_.adapter(adapter), &set.examples});
      }
    }
    if (pairs.empty()) return true;
    Progress progress("losses");
    const auto losses =
        held_out_losses(model_.backbone(), pairs,
                        {.on_progress = [&](int64_t done, int64_t all) { progress.tell(done, all); }, .interrupted = interrupted});
    if (!losses) return false;
    auto own = losses->begin();
    for (size_t i = 0; i < data_.size(); ++i) {
      if (data_[i].examples.empty()) continue;
      const ExampleLosses& first = *own;
      for (size_t k = 0; k < data_[i].adapters.size(); ++k, ++own) {
        add_losses(data_[i].adapters[k], *own, k == 0 ? nullptr : &first, results_[i].adapters[k]);
      }
      double tokens = 0;
      for (const double count : first.token_counts) tokens += count;
      results_[i].tokens = static_cast<int64_t>(tokens);
    }
    return true;
  }

  /// first: of the adapter that changes are told from; nullptr: it is this one.
  void add_losses(size_t adapter, const ExampleLosses& losses, const ExampleLosses* first, AdapterResult& result) {
    const Estimate loss = ratio_of(losses.loss_sums, losses.token_counts);
    if (!std::isfinite(loss.value)) not_finite_.insert(adapter);
    const Estimate change = first == nullptr ? Estimate() : ratio_difference(losses.loss_sums, first->loss_sums, losses.token_counts);
    result.metrics.push_back({"loss", false, loss, change});
    result.metrics.push_back({"perplexity", false, exponential_of(loss), {}});
    add_share("accuracy", losses.all_right, first == nullptr ? nullptr : &first->all_right, result);
  }

  static void add_share(const std::string& name, const std::vector<double>& values, const std::vector<double>* first,
                        AdapterResult& result) {
    result.metrics.push_back({name, true, mean_of(values), first == nullptr ? Estimate() : mean_difference(values, *first)});
  }

  /// Which answer: of a set's example, by one of the set's adapters.
  struct Asked {
    size_t set = 0, adapter = 0;
    int64_t example = 0;
  };

  bool measure_answers() {
    GenerateOptions generation;
    generation.max_new_tokens = options_.max_new_tokens;
    generation.stop = options_.stop;
    Answering answering(generation, model_);
    answering.begin();
    int64_t all = 0, done = 0;
    for (const EvaluatedData& set : data_) all += set.examples.size() * static_cast<int64_t>(set.adapters.size());
    Progress progress("answers");
    for (size_t i = 0; i < data_.size(); ++i) {
      const EvaluatedData& set = data_[i];
      if (set.examples.empty()) continue;
      std::vector<std::vector<double>> matches(set.adapters.size(), std::vector<double>(static_cast<size_t>(set.examples.size())));
      OrderedAnswers lines(set.adapters.size(), 1, write_ ? write_ : [](const std::string&) {});
      std::map<size_t, Asked> asked;
      Asked next{i, 0, 0};
      size_t begun = 0;
      QuestionSource source;
      source.next = [&]() -> std::optional<Question> {
        if (next.example == set.examples.size()) return std::nullopt;
        const LastAnswer last = *last_answer_of(set.answered, next.example);
        asked[begun++] = next;
        Question question{
            set.adapters[next.adapter], 0, 0, {last.prompt.begin(), last.prompt.end()}, nullptr, model_.text().end_ids_like(last.answer)};
        if (++next.adapter == set.adapters.size()) next = {i, 0, next.example + 1};
        return question;
      };
      source.on_answer = [&](size_t number, const Answer& answer) {
        const Asked which = asked.extract(number).mapped();
        matches[which.adapter][static_cast<size_t>(which.example)] = take_answer(which, answer, lines);
        progress.tell(++done, all);
      };
      if (!answering.answer(source, options_.at_once)) return false;
      lines.finish();
      for (size_t k = 0; k < matches.size(); ++k)
        add_share("exact_match", matches[k], k == 0 ? nullptr : &matches[0], results_[i].adapters[k]);
    }
    return true;
  }

  /// 1: it is the reference; 0: another; NaN: the model's output was not finite.
  double take_answer(const Asked& which, const Answer& answer, OrderedAnswers& lines) {
    const EvaluatedData& set = data_[which.set];
    const std::string& adapter = model_.name(set.adapters[which.adapter]);
    const bool is_finite = answer.generated.stop != StopReason::not_finite;
    if (!is_finite) not_finite_.insert(set.adapters[which.adapter]);
    const std::string reference = model_.answer_text(last_answer_of(set.answered, which.example)->answer);
    const bool matches = is_match(answer.text, reference, options_.match);
    ordered_json line{{"data", set.name}, {"example", which.example}, {"line", set.examples.line(which.example)}, {"adapter", adapter}};
    line["reference"] = reference;
    line["text"] = answer.text;
    line["stop"] = to_string(answer.generated.stop);
    line["exact_match"] = is_finite ? ordered_json(matches) : ordered_json();
    lines.add({which.example, which.adapter, 0}, text_of_json(line) + "\n");
    return is_finite ? matches : std::nan("");
  }

  bool measure_choices() {
    int64_t all = 0, before = 0;
    for (const EvaluatedData& set : data_) all += static_cast<int64_t>(set.questions.tokens.size());
    if (all == 0) return true;
    Generator generator(model_.backbone());
    Progress progress("choices");
    for (size_t i = 0; i < data_.size(); ++i) {
      const ChoiceQuestions& questions = data_[i].questions;
      if (questions.tokens.empty()) continue;
      std::vector<Adapter*> adapters;
      for (const size_t adapter : data_[i].adapters) adapters.push_back(model_.adapter(adapter));
      const auto likelihoods = choice_likelihoods(generator, adapters, questions.tokens, model_.free_bytes() / 2, interrupted,
                                                  [&](size_t done) { progress.tell(before + static_cast<int64_t>(done), all); });
      if (!likelihoods) return false;
      before += static_cast<int64_t>(questions.tokens.size());
      take_choices(i, *likelihoods);
    }
    return true;
  }

  void take_choices(size_t set, const std::vector<std::vector<std::vector<Likelihood>>>& likelihoods) {
    const ChoiceQuestions& questions = data_[set].questions;
    std::vector<std::vector<double>> right(likelihoods.size()), right_by_length(likelihoods.size());
    for (size_t question = 0; question < questions.tokens.size(); ++question) {
      for (size_t k = 0; k < likelihoods.size(); ++k) {
        const std::string& adapter = results_[set].adapters[k].adapter;
        std::vector<double> log_probabilities;
        for (const Likelihood& choice : likelihoods[k][question]) log_probabilities.push_back(choice.log_probability);
        const bool is_finite = std::ranges::all_of(log_probabilities, [](double value) { return std::isfinite(value); });
        if (!is_finite) not_finite_.insert(data_[set].adapters[k]);
        const ChoiceScore score = score_choices(log_probabilities, questions.texts[question]);
        right[k].push_back(is_finite ? score.likeliest == questions.answers[question] : std::nan(""));
        right_by_length[k].push_back(is_finite ? score.likeliest_by_length == questions.answers[question] : std::nan(""));
        if (!write_) continue;
        ordered_json line{{"data", data_[set].name}, {"example", question}, {"line", questions.lines[question]}, {"adapter", adapter}};
        line["answer"] = questions.answers[question];
        line["choice"] = is_finite ? ordered_json(score.likeliest) : ordered_json();
        line["choice_by_length"] = is_finite ? ordered_json(score.likeliest_by_length) : ordered_json();
        line["log_probabilities"] = log_probabilities;
        write_(text_of_json(line) + "\n");
      }
    }
    for (size_t k = 0; k < right.size(); ++k) {
      add_share("acc", right[k], k == 0 ? nullptr : &right[0], results_[set].adapters[k]);
      add_share("acc_norm", right_by_length[k], k == 0 ? nullptr : &right_by_length[0], results_[set].adapters[k]);
    }
  }

  const EvaluateOptions& options_;
  const AdaptedModel& model_;
  const std::vector<EvaluatedData>& data_;
  const Write& write_;
  std::vector<EvaluationResult> results_;
  std::set<size_t> not_finite_;
};

}  // namespace

std::optional<Evaluated> evaluate_all(const EvaluateOptions& options, const AdaptedModel& model, const std::vector<EvaluatedData>& data,
                                      const Write& write) {
  Evaluation evaluation(options, model, data, write);
  if (!evaluation.run()) return std::nullopt;
  return evaluation.take();
}

}  // namespace cotune
