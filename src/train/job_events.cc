#include "train/job_events.h"

#include "train/run_observer.h"
#include "train/training_job.h"

namespace cotune {

using Json = nlohmann::ordered_json;

nlohmann::ordered_json start_event(const TrainingJob& job) {
  return marked({{"event", "start"},
                 {"job", job.spec().name},
                 {"step", job.state().step},
                 {"steps", job.total_steps()},
                 {"examples", job.data().train.size()},
                 {"held_out", job.data().eval.size()}},
                job);
}

nlohmann::ordered_json sample_event(const SampleEvent& sample) {
  return {{"event", "sample"},
          {"job", sample.job->spec().name},
          {"step", sample.step},
          {"prompt", sample.prompt},
          {"answer", sample.out_of_memory ? Json(nullptr) : Json(sample.answer)}};
}

nlohmann::ordered_json end_event(const TrainingJob& job) {
  return marked({{"event", "end"},
                 {"job", job.spec().name},
                 {"step", job.state().step},
                 {"status", to_string(job.state().status)},
                 {"adapter_step", job.has_left_adapter() ? Json(job.result().step) : Json(nullptr)},
                 {"reason", job.state().failure}},
                job);
}

nlohmann::ordered_json marked(nlohmann::ordered_json event, const TrainingJob& job) {
  if (job.is_emulated()) event["emulated"] = true;
  return event;
}

}  // namespace cotune
