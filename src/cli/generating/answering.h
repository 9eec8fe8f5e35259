#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cli/generating/generate_options.h"
#include "cli/inputs/adapted_model.h"
#include "data/stop_texts.h"
#include "engine/generation.h"

namespace cotune {

/// One answer that is wanted.
struct Question {
  size_t adapter = 0;                ///< of the model's
  uint64_t prompt_number = 0, sample = 0;  ///< of which its seed is made (answer_seed)
  std::vector<int32_t> prompt;
  CachedSequence* memory = nullptr;
  std::vector<int32_t> end_ids{};  ///< tokens that end it; none: those of the model (ModelText)
};

struct Answer {
  std::string text;
  GeneratedAnswer generated;
  double seconds = 0;  ///< since all of them began
};

/// Sees answers come. Called on the thread that generates.
class AnswerWatcher {
 public:
  virtual ~AnswerWatcher() = default;
  virtual void on_piece(size_t question, const std::string& piece) = 0;
  virtual void on_end(size_t question, const Answer& answer) = 0;
};

/// Questions that are asked one after the other.
struct QuestionSource {
  std::function<std::optional<Question>()> next;                 ///< nothing: there are no more
  /// Numbers count from 0 in the order of next().
  std::function<void(size_t number, const Answer& answer)> on_answer;
  bool takes_interrupted = false;  ///< on_answer is called of answers that were interrupted too
  std::function<void(size_t number, const std::string& piece)> on_piece{};  ///< what an answer has more of
  std::function<void(size_t under_way, int64_t new_tokens)> on_pass{};  ///< before a pass through the model; tokens of all so far
};

/// Answers as the options of `cotune generate` say.
class Answering {
 public:
  /// Both must outlive this.
  Answering(const GenerateOptions& options, const AdaptedModel& model);

  /// Ready to answer: the model has been loaded.
  void begin();

  /// As many at once as `at_once` says, which 0 leaves to memory (engine/answer_places.h); one that ends gives its place to the next at once.
  /// False where Ctrl-C ended it.
  bool answer(const QuestionSource& source, int64_t at_once);

  /// The same of questions that are there, in their order. None is answered where one is refused: throws UserError then. Of questions that
  /// an interruption kept from beginning on_end is not called.
  std::vector<Answer> answer(const std::vector<Question>& questions, AnswerWatcher& watcher, int64_t at_once);

 private:
  GenerationRequest request_for(const Question& question) const;

  const GenerateOptions& options_;
  const AdaptedModel& model_;
  SamplingSettings sampling_;
  StopTexts stop_;
  std::vector<int32_t> stop_tokens_;  ///< special tokens whose texts end an answer
  std::optional<Generator> generator_;
};

}  // namespace cotune
