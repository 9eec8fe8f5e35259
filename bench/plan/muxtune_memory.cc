/// MuxTune's memory over tasks (5.29×; MX-38), over every corner of the ranges in data/headline_parameters.json.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "headline_parameters.h"
#include "plan/cost/stage_memory.h"
#include "plan/shapes/cluster.h"
#include "plan/shapes/job_shape.h"
#include "rows.h"

namespace cotune {
namespace {

const char* const section = "muxtune_memory";

struct Case {
  const char* name;
  const char* model;
  int64_t stages, tensor_parallel;
  const char* lengths;  ///< the fixed parameter that has them
  int64_t paper_limit;
};

/// Bytes of one device with tasks that each have a microbatch in flight.
class TasksOnADevice {
 public:
  explicit TasksOnADevice(const Case& each) {
    const ModelConfig model = model_preset(each.model);
    const StageShape stage = even_stages(model, each.stages, each.tensor_parallel).front();
    JobSpec spec;
    spec.adapter.r = fixed_parameter("lora_rank");
    const std::vector<AdapterShape> adapters = adapter_shapes(spec, 0, model);
    const std::vector<int64_t> batches = fixed_list("table2_batches"), lengths = fixed_list(each.lengths);
    for (size_t k = 0; k < batches.size(); ++k) {
      tasks_.push_back(stage_memory(model, stage, adapters, 2, even_microbatch(batches[k], lengths[k], {1}), 1, 2));
    }
  }

  double bytes(int64_t tasks, const Parameters& parameters, bool is_shared) const {
    double total = 0, weights = 0, workspace = 0;
    for (int64_t k = 0; k < tasks; ++k) {
      const StageMemory& memory = tasks_[static_cast<size_t>(k) % tasks_.size()];
      total += static_cast<double>(memory.adapters) + parameters.at("activation_factor") * static_cast<double>(memory.activations);
      weights = static_cast<double>(memory.weights);
      workspace = std::max(workspace, static_cast<double>(memory.workspace));
      if (!is_shared) total += weights + static_cast<double>(memory.workspace) + parameters.at("context_bytes");
    }
    return is_shared ? total + weights + workspace + parameters.at("context_bytes") : total;
  }

  int64_t most_tasks(const Parameters& parameters, bool is_shared) const {
    const auto room = static_cast<double>(device_preset("A40").memory_bytes);
    int64_t tasks = 0;
    while (tasks < 400 && bytes(tasks + 1, parameters, is_shared) <= room) ++tasks;
    return tasks;
  }

 private:
  std::vector<StageMemory> tasks_;
};

}  // namespace

void muxtune_memory_rows() {
  for (const Case& each : {Case{"GPT-2.7B, WL-A, 2 × A40", "gpt-2.7b", 1, 2, "wl_a_tokens", 15}, Case{"LLaMA-7B, WL-B, 4 × A40", "llama-2-7b", 4, 1, "wl_b_tokens", 11}}) {
    const TasksOnADevice device(each);
    const ResultOf factor = [&](const Parameters& parameters) {
      const int64_t tasks = fixed_parameter("memory_tasks");
      return device.bytes(tasks, parameters, false) / device.bytes(tasks, parameters, true);
    };
    const Range range = over_corners(section, factor);
    print_row(fmt::format("MX-38: memory of a backbone per task over one for all, 32 tasks, {}", each.name), "up to 5.29×", "a range; above 1 at every corner",
              fmt::format("{}{}{}", range.text(), range.missed_unless_above(1), one_at_a_time(section, factor, "×")));
    const ResultOf replicated = [&](const Parameters& parameters) { return static_cast<double>(device.most_tasks(parameters, false)); };
    const ResultOf shared = [&](const Parameters& parameters) { return static_cast<double>(device.most_tasks(parameters, true)); };
    const Range of_replicated = over_corners(section, replicated), of_shared = over_corners(section, shared);
    std::vector<std::string> corners;
    for (const Parameters& corner : corners_of(section)) corners.push_back(fmt::format("{}: {:.0f}; {:.0f}", text_of(corner), replicated(corner), shared(corner)));
    const auto limit = static_cast<double>(each.paper_limit);
    const auto activation_factor = [&](double tasks, const ResultOf& result) { return value_that_gives(section, "activation_factor", 0.1, 20, tasks, result); };
    print_row("the same: tasks that fit 48 GB, a backbone each; with one for all", fmt::format("{}; –", each.paper_limit), fmt::format("{} ± 2; above 32 for 7B", each.paper_limit),
              fmt::format("{:.0f} ({:.0f}–{:.0f}){}; {:.0f} ({:.0f}–{:.0f}){}. With {}. {} with activation_factor {:.2f} to {:.2f}; above 32 with one for all up to {:.2f}",
                          of_replicated.taken, of_replicated.least, of_replicated.most,
                          missed_unless(limit - of_replicated.least <= 2 && of_replicated.most - limit <= 2), of_shared.taken, of_shared.least, of_shared.most,
                          missed_unless(of_shared.least > 32), fmt::join(corners, ". With "), each.paper_limit, activation_factor(limit + 0.5, replicated),
                          activation_factor(limit - 0.5, replicated), activation_factor(32.5, shared)));
  }
}

}  // namespace cotune
