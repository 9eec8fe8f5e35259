/// What metrics.jsonl, `cotune train --json` and summary.json say of what is planned anew while a run goes on.
#pragma once

#include <nlohmann/json.hpp>

namespace cotune {

struct DivisionSwap;
struct PeakEvent;
struct PredictionErrors;
struct RefitEvent;

/// {"rounds", "before", "after"}: the latter are null where there are no rounds.
nlohmann::ordered_json to_json(const PredictionErrors& errors);
/// {"round", "cause", "before", "after", "reason", "seconds"}
nlohmann::ordered_json to_json(const DivisionSwap& swap);

/// {"event": "refit", "round", "ratio", "prediction_errors"}
nlohmann::ordered_json refit_event(const RefitEvent& event);
/// {"event": "peak", "round", "correction_bytes", "peak_prediction_errors"}
nlohmann::ordered_json peak_event(const PeakEvent& event);
/// {"event": "swap", …}
nlohmann::ordered_json swap_event(const DivisionSwap& swap);

}  // namespace cotune
