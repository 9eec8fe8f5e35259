/// What metrics.jsonl and `cotune train --json` say of a job alike.
#pragma once

#include <nlohmann/json.hpp>

namespace cotune {

class TrainingJob;
struct RungEvent;
struct SampleEvent;

/// The job's start in this run, or its going on.
nlohmann::ordered_json start_event(const TrainingJob& job);

nlohmann::ordered_json sample_event(const SampleEvent& sample);

nlohmann::ordered_json rung_event(const RungEvent& rung);

/// The job's end, with its reason and the step of the adapter that it leaves, or null.
nlohmann::ordered_json end_event(const TrainingJob& job);

/// With `emulated` where nothing of the job was computed.
nlohmann::ordered_json marked(nlohmann::ordered_json event, const TrainingJob& job);

}  // namespace cotune
