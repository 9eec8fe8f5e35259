#include "train/planning_events.h"

#include "train/run_events.h"

namespace cotune {

using Json = nlohmann::ordered_json;

Json to_json(const PredictionErrors& errors) {
  const bool has_any = errors.rounds > 0;
  return {{"rounds", errors.rounds}, {"before", has_any ? Json(errors.before()) : Json()}, {"after", has_any ? Json(errors.after()) : Json()}};
}

Json to_json(const DivisionSwap& swap) {
  return {{"round", swap.round}, {"cause", swap.cause},   {"before", swap.before},
          {"after", swap.after}, {"reason", swap.reason}, {"seconds", swap.seconds}};
}

Json refit_event(const RefitEvent& event) {
  return {{"event", "refit"}, {"round", event.round}, {"ratio", event.ratio}, {"prediction_errors", to_json(event.errors)}};
}

Json peak_event(const PeakEvent& event) {
  return {{"event", "peak"},
          {"round", event.round},
          {"correction_bytes", event.correction_bytes},
          {"peak_prediction_errors", to_json(event.errors)}};
}

Json swap_event(const DivisionSwap& swap) {
  Json json{{"event", "swap"}};
  json.update(to_json(swap));
  return json;
}

}  // namespace cotune
