#include "cli/generating/answering.h"

#include <chrono>
#include <map>
#include <utility>

#include "cli/generating/answer_text.h"
#include "cli/terminal/interruption.h"
#include "engine/answer_places.h"

namespace cotune {
namespace {

/// The special tokens among texts: an answer's text has nothing of them.
std::vector<int32_t> special_tokens_in(const std::vector<std::string>& texts, const ModelText& model) {
  std::vector<int32_t> tokens;
  for (const std::string& text : texts) {
    const std::optional<int32_t> id = model.tokenizer().token_id(text);
    if (id && model.tokenizer().is_special(*id)) tokens.push_back(*id);
  }
  return tokens;
}

}  // namespace

Answering::Answering(const GenerateOptions& options, const AdaptedModel& model)
    : options_(options),
      model_(model),
      sampling_(sampling_of(options)),
      stop_(options.stop),
      stop_tokens_(special_tokens_in(options.stop, model.text())) {}

void Answering::begin() { generator_.emplace(model_.backbone()); }

GenerationRequest Answering::request_for(const Question& question) const {
  GenerationRequest request;
  request.prompt = question.prompt;
  request.adapter = model_.adapter(question.adapter);
  request.max_new_tokens = options_.max_new_tokens;
  request.sampling = sampling_;
  request.sampling.seed = answer_seed(sampling_.seed, question.prompt_number, question.sample);
  request.stop_ids = question.end_ids.empty() ? model_.text().end_of_turn_ids() : question.end_ids;
  request.memory = question.memory;
  return request;
}

bool Answering::answer(const QuestionSource& questions, int64_t at_once) {
  const auto begin = std::chrono::steady_clock::now();
  AnswerPlaces places(*model_.backbone(), at_once, model_.free_bytes() / 2);
  std::map<size_t, AnswerText> texts;
  std::optional<Question> waiting;
  bool has_ended = false;
  size_t begun = 0;
  int64_t new_tokens = 0;
  const auto show = [&](size_t number, const std::string& piece) {
    if (questions.on_piece && !piece.empty()) questions.on_piece(number, piece);
  };
  RequestSource source;
  source.next = [&]() -> std::optional<GenerationRequest> {
    if (questions.on_pass) questions.on_pass(places.under_way(), new_tokens);
    if (interrupted() || has_ended) return std::nullopt;
    if (!waiting) waiting = questions.next();
    if (!waiting) {
      has_ended = true;
      return std::nullopt;
    }
    const int64_t tokens = static_cast<int64_t>(waiting->prompt.size()) + options_.max_new_tokens;
    if (!places.has_place(begun, tokens)) return std::nullopt;
    places.take(begun, tokens);
    texts.emplace(begun++, AnswerText(model_.text().tokenizer(), stop_, stop_tokens_));
    return request_for(*std::exchange(waiting, std::nullopt));
  };
  source.on_answer = [&](size_t number, GeneratedAnswer generated) {
    places.give_back(number);
    auto text = texts.extract(number);
    if (generated.stop == StopReason::interrupted && !questions.takes_interrupted) return;
    show(number, text.mapped().finish());
    if (text.mapped().is_stopped()) generated.stop = StopReason::stop_text;
    questions.on_answer(number, {text.mapped().text(), std::move(generated),
                                 std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count()});
  };
  GenerationCallbacks callbacks;
  callbacks.interrupted = interrupted;
  callbacks.on_token = [&](size_t number, int32_t token) -> std::optional<StopReason> {
    ++new_tokens;
    AnswerText& text = texts.at(number);
    show(number, text.add(token));
    if (text.is_stopped()) return StopReason::stop_text;
    if (interrupted()) return StopReason::interrupted;
    return std::nullopt;
  };
  generator_->generate(source, callbacks);
  return !interrupted();
}

std::vector<Answer> Answering::answer(const std::vector<Question>& questions, AnswerWatcher& watcher, int64_t at_once) {
  std::vector<GenerationRequest> requests;
  for (const Question& question : questions) requests.push_back(request_for(question));
  generator_->check(requests);
  std::vector<Answer> answers(questions.size());
  QuestionSource source;
  size_t begun = 0;
  source.next = [&]() -> std::optional<Question> {
    if (begun == questions.size()) return std::nullopt;
    return questions[begun++];
  };
  source.takes_interrupted = true;
  source.on_piece = [&](size_t number, const std::string& piece) { watcher.on_piece(number, piece); };
  source.on_answer = [&](size_t number, const Answer& answer) {
    answers[number] = answer;
    watcher.on_end(number, answer);
  };
  this->answer(source, at_once);
  return answers;
}

}  // namespace cotune
