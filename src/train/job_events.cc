#include "train/job_events.h"

#include "train/run_events.h"
#include "train/training_job.h"

namespace cotune {

using Json = nlohmann::ordered_json;

nlohmann::ordered_json start_event(const TrainingJob& job) {
  Json event{{"event", "start"},
             {"job", job.spec().name},
             {"step", job.state().step},
             {"steps", job.total_steps()},
             {"examples", job.data().train.size()},
             {"held_out", job.data().eval.size()}};
  if (!job.spec().sweep.of.empty()) event["sweep"] = job.spec().sweep.of;
  return marked(std::move(event), job);
}

nlohmann::ordered_json sample_event(const SampleEvent& sample) {
  return {{"event", "sample"},
          {"job", sample.job->spec().name},
          {"step", sample.step},
          {"prompt", sample.prompt},
          {"answer", sample.out_of_memory ? Json(nullptr) : Json(sample.answer)}};
}

nlohmann::ordered_json rung_event(const RungEvent& rung) {
  return {{"event", "rung"},
          {"job", rung.job->spec().name},
          {"step", rung.step},
          {"loss", rung.loss},
          {"accuracy", rung.accuracy},
          {"rank", rung.rank},
          {"of", rung.of},
          {"goes_on", rung.goes_on}};
}

nlohmann::ordered_json end_event(const TrainingJob& job) {
  return marked({{"event", "end"},
                 {"job", job.spec().name},
                 {"step", job.state().step},
                 {"status", to_string(job.state().status)},
                 {"adapter_step", job.has_left_adapter() ? Json(job.result().step) : Json(nullptr)},
                 {"reason", job.state().end_reason()}},
                job);
}

nlohmann::ordered_json marked(nlohmann::ordered_json event, const TrainingJob& job) {
  if (job.is_emulated()) event["emulated"] = true;
  return event;
}

}  // namespace cotune
