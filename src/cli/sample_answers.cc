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
                             size_t name_width)
    : generator_(std::move(backbone)), text_(text), max_new_tokens_(max_new_tokens), name_width_(name_width) {}

void SampleAnswers::on_job_started(const TrainingJob& job) {
  if (job.state().step == 0) print(job, "before");
}

void SampleAnswers::on_job_ended(const TrainingJob& job) {
  const JobStatus status = job.state().status;
  if (status == JobStatus::finished || status == JobStatus::stopped_early) print(job, "after");
}

void SampleAnswers::print(const TrainingJob& job, const char* when) {
  const Dataset& examples = job.data().eval.empty() ? job.data().train : job.data().eval;
  const std::span<const int32_t> tokens = examples.tokens(0);
  const std::span<const uint8_t> learned = examples.learned(0);
  const auto prompt_tokens =
      std::max<std::ptrdiff_t>(1, std::find_if(learned.begin(), learned.end(), [](uint8_t flag) { return flag != 0; }) - learned.begin());
  GenerationRequest request;
  request.prompt.assign(tokens.begin(), tokens.begin() + prompt_tokens);
  request.adapter = &job.adapter();
  request.max_new_tokens = max_new_tokens_;
  request.stop_ids = text_.end_of_turn_ids();
  const std::string name = name_column(job.spec().name, name_width_);
  std::vector<GeneratedAnswer> answers;
  try {
    answers = generator_.generate({&request, 1});
  } catch (const MemoryLimitExceeded&) {
    print_line(fmt::format("{}  no memory is left for a sample {} training", name, when));
    return;
  }
  print_line(fmt::format("{}  asked {} training: {}", name, when, on_one_line(text_.tokenizer().decode(request.prompt, true))));
  print_line(fmt::format("{}  answers: {}", name, on_one_line(text_.tokenizer().decode(answers.front().tokens, true))));
}

}  // namespace cotune
