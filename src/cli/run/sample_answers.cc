#include "cli/run/sample_answers.h"

#include <algorithm>

#include "ops/memory.h"
#include "train/training_job.h"

namespace cotune {

SampleAnswers::SampleAnswers(std::shared_ptr<Backbone> backbone, const ModelText& text, int64_t max_new_tokens,
                             std::vector<RunObserver*> observers)
    : generator_(std::move(backbone)), text_(text), max_new_tokens_(max_new_tokens), observers_(std::move(observers)) {}

void SampleAnswers::tell(const SampleEvent& sample) const {
  for (RunObserver* observer : observers_) observer->on_sample(sample);
}

void SampleAnswers::on_job_started(const TrainingJob& job) {
  if (job.state().step > 0 || !started_.insert(&job).second) return;  // it may have paused and gone on
  if (job.starts_as_base_model()) {
    starting_.push_back(&job);
  } else {
    tell(answer(job, false, 0));
  }
}

void SampleAnswers::on_round_ended(double) {
  const auto stepped = std::ranges::stable_partition(starting_, [](const TrainingJob* job) { return job->state().step == 0; });
  const std::vector<const TrainingJob*> answering(stepped.begin(), stepped.end());
  starting_.erase(stepped.begin(), stepped.end());
  for (const TrainingJob* job : answering) tell(answer(*job, true, 0));
}

void SampleAnswers::on_job_ended(const TrainingJob& job) {
  std::erase(starting_, &job);
  if (job.has_left_adapter()) tell(answer(job, false, job.result().step));
}

SampleEvent SampleAnswers::answer(const TrainingJob& job, bool as_base_model, int64_t step) {
  const Dataset& examples = job.data().eval.empty() ? job.data().train : job.data().eval;
  const std::span<const int32_t> tokens = examples.tokens(0);
  const std::span<const uint8_t> learned = examples.learned(0);
  const auto prompt_tokens =
      std::max<std::ptrdiff_t>(1, std::find_if(learned.begin(), learned.end(), [](uint8_t flag) { return flag != 0; }) - learned.begin());
  const auto answer_end = std::find(learned.begin() + prompt_tokens, learned.end(), uint8_t{0});
  GenerationRequest request;
  request.prompt.assign(tokens.begin(), tokens.begin() + prompt_tokens);
  request.max_new_tokens = max_new_tokens_;
  request.stop_ids = text_.end_ids_like({tokens.begin() + prompt_tokens, tokens.begin() + (answer_end - learned.begin())});
  SampleEvent sample{&job, step, text_.tokenizer().decode(request.prompt, true), "", !as_base_model && !job.is_loaded()};
  if (sample.out_of_memory) return sample;
  if (!as_base_model) request.adapter = &job.adapter();
  try {
    sample.answer = text_.tokenizer().decode(generator_.generate({&request, 1}).front().tokens, true);
  } catch (const MemoryLimitExceeded&) {
    sample.out_of_memory = true;
  }
  return sample;
}

}  // namespace cotune
