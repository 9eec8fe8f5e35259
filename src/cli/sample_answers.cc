#include "cli/sample_answers.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/output.h"
#include "cli/progress.h"
#include "ops/memory.h"
#include "train/training_job.h"

namespace cotune {
namespace {

/// Text on one line, so that a sample is one line of the log.
std::string on_one_line(std::string text) {
  std::string line;
  for (const char c : text) {
    if (c == '\n') {
      line += "\\n";
    } else if (static_cast<unsigned char>(c) >= 0x20) {
      line += c;
    }
  }
  return line;
}

}  // namespace

SampleAnswers::SampleAnswers(std::shared_ptr<const Backbone> backbone, const ModelText& text, int64_t max_new_tokens,
                             std::function<void(const SampleAnswer&)> tell)
    : generator_(std::move(backbone)), text_(text), max_new_tokens_(max_new_tokens), tell_(std::move(tell)) {}

void SampleAnswers::on_job_started(const TrainingJob& job) {
  if (job.state().step == 0) tell_(answer(job, 0));
}

void SampleAnswers::on_job_ended(const TrainingJob& job) {
  if (job.has_left_adapter()) tell_(answer(job, job.result().step));
}

SampleAnswer SampleAnswers::answer(const TrainingJob& job, int64_t step) {
  const Dataset& examples = job.data().eval.empty() ? job.data().train : job.data().eval;
  const std::span<const int32_t> tokens = examples.tokens(0);
  const std::span<const uint8_t> learned = examples.learned(0);
  const auto prompt_tokens =
      std::max<std::ptrdiff_t>(1, std::find_if(learned.begin(), learned.end(), [](uint8_t flag) { return flag != 0; }) - learned.begin());
  GenerationRequest request;
  request.prompt.assign(tokens.begin(), tokens.begin() + prompt_tokens);
  request.max_new_tokens = max_new_tokens_;
  request.stop_ids = text_.end_of_turn_ids();
  SampleAnswer sample{&job, step, text_.tokenizer().decode(request.prompt, true), "", !job.is_loaded()};
  if (sample.out_of_memory) return sample;
  request.adapter = &job.adapter();
  try {
    sample.answer = text_.tokenizer().decode(generator_.generate({&request, 1}).front().tokens, true);
  } catch (const MemoryLimitExceeded&) {
    sample.out_of_memory = true;
  }
  return sample;
}

void print_sample(const SampleAnswer& sample, size_t name_width) {
  const TrainingJob& job = *sample.job;
  const std::string name = name_column(job.spec().name, name_width);
  std::string when = sample.step == 0 ? "before training" : "after training";
  if (sample.step > 0 && sample.step != job.state().step) when += fmt::format(" (step {})", sample.step);
  if (sample.out_of_memory) {
    print_line(fmt::format("{}  no memory is left for a sample {}", name, when));
    return;
  }
  print_line(fmt::format("{}  asked {}: {}", name, when, on_one_line(sample.prompt)));
  print_line(fmt::format("{}  answers: {}", name, on_one_line(sample.answer)));
}

}  // namespace cotune
