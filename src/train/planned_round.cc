#include "train/planned_round.h"

namespace cotune {

nlohmann::ordered_json to_json(const PlannedRound& plan) {
  using Json = nlohmann::ordered_json;
  const JobGrouping& taken = plan.taken();
  size_t jobs = 0;
  for (const std::vector<std::string>& task : taken.tasks) jobs += task.size();
  Json json{{"cause", plan.cause},
            {"round", plan.round},
            {"jobs", jobs},
            {"choice", taken.name},
            {"hybrid_tasks", taken.tasks},
            {"seconds", taken.seconds},
            {"microbatches", taken.microbatches},
            {"tokens", taken.tokens},
            {"token_budget", plan.token_budget},
            {"recompute", plan.recompute},
            {"reason", plan.reason},
            {"costs", plan.costs}};
  json["alternatives"] = Json::array();
  for (size_t i = 0; i < plan.alternatives.size(); ++i) {
    if (i == plan.chosen) continue;
    const JobGrouping& each = plan.alternatives[i];
    json["alternatives"].push_back({{"name", each.name},
                                    {"hybrid_tasks", each.tasks},
                                    {"seconds", each.seconds},
                                    {"microbatches", each.microbatches},
                                    {"tokens", each.tokens}});
  }
  return json;
}

}  // namespace cotune
