/// MuxTune's throughput by simulation (2.33×; MX-34, MX-35, MX-37), over every corner of the ranges in data/headline_parameters.json.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "headline_parameters.h"
#include "plan/cost/pipeline_seconds.h"
#include "plan/fusion/hybrid_tasks.h"
#include "plan/fusion/replica_jobs.h"
#include "rows.h"

namespace cotune {
namespace {

const char* const section = "muxtune_throughput";

/// Eight jobs with the batches of MuxTune's Table 2.
struct Workload {
  const char* name;
  const char* lengths;  ///< the fixed parameter that has them
};
constexpr Workload uniform{"Uniform", "uniform_tokens"}, wl_a{"WL-A", "wl_a_tokens"}, wl_b{"WL-B", "wl_b_tokens"};

enum class Padding { none, to_longest };

ReplicaJobs replica_of(const std::string& device, const Parameters& parameters, const Workload& workload, int64_t batch_factor, Padding padding) {
  ReplicaJobs replica{.model = model_preset("llama-2-7b")};
  const std::vector<int64_t> batches = fixed_list("table2_batches"), lengths = fixed_list(workload.lengths);
  const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  for (int32_t j = 0; j < 8; ++j) {
    JobSpec spec;
    spec.adapter.r = fixed_parameter("lora_rank");
    JobShape shape{.batch_size = batch_factor * batches[static_cast<size_t>(j)], .adapters = adapter_shapes(spec, j, replica.model)};
    shape.lengths.weights = {{padding == Padding::none ? lengths[static_cast<size_t>(j)] : longest, 1.0}};
    replica.jobs.push_back(std::move(shape));
  }
  replica.stages = even_stages(replica.model, 4, 1);
  replica.machine = {device_preset(device), {}, "bfloat16"};
  replica.machine.device.compute_efficiency = parameters.at("compute_efficiency");
  replica.machine.device.memory_efficiency = parameters.at("memory_efficiency");
  replica.machine.device.launch_seconds = parameters.at("launch_seconds");
  // On an H100 node the links are NVLink's in any case.
  replica.between_stages = {.bandwidth = device == "H100" ? fixed_parameter("h100_link_bandwidth").get<double>() : parameters.at("link_bandwidth"),
                            .latency = fixed_parameter("muxtune_link_latency")};
  return replica;
}

/// A hybrid task by itself under 1F1B with a flush.
double alone_seconds(const FusionProblem& problem, const std::vector<int32_t>& jobs) {
  double slowest = 0;
  for (const StageCost& stage : problem.cost(jobs).stages) slowest = std::max(slowest, stage.forward_s + stage.backward_s);
  return even_chunks_seconds(slowest, problem.microbatches, static_cast<int64_t>(problem.cost(jobs).stages.size()));
}

struct SystemSeconds {
  double ours = 0, separate = 0, batched = 0;              ///< HF-PEFT and NeMo; SL-PEFT
  double no_fusion = 0, no_interleaving = 0, no_alignment = 0;
};

SystemSeconds simulated(const std::string& device, const Parameters& parameters, const Workload& workload, int64_t batch_factor) {
  const auto microbatches = static_cast<int64_t>(parameters.at("microbatches"));
  const auto problem_of = [&](Padding padding) {
    return fusion_problem(replica_of(device, parameters, workload, batch_factor, padding), microbatches);
  };
  const FusionProblem ragged = problem_of(Padding::none), padded = problem_of(Padding::to_longest);
  HybridTasks each;
  std::vector<int32_t> all;
  SystemSeconds result;
  for (int32_t j = 0; j < 8; ++j) {
    each.push_back({j});
    all.push_back(j);
    result.separate += alone_seconds(ragged, {j});
  }
  const HybridTaskChoice chosen = choose_hybrid_tasks(std::span(&ragged, 1)).chosen;
  result.ours = chosen.seconds;
  result.batched = alone_seconds(padded, all);
  result.no_fusion = fusion_time(ragged, each).seconds;
  for (const auto& task : chosen.tasks) result.no_interleaving += alone_seconds(ragged, task);
  result.no_alignment = choose_hybrid_tasks(std::span(&padded, 1)).chosen.seconds;
  return result;
}

/// The same, each case simulated once.
const SystemSeconds& systems(const std::string& device, const Parameters& parameters, const Workload& workload, int64_t batch_factor = 1) {
  static std::map<std::tuple<std::string, Parameters, std::string, int64_t>, SystemSeconds> known;
  const auto [found, is_new] = known.try_emplace({device, parameters, workload.name, batch_factor});
  if (is_new) found->second = simulated(device, parameters, workload, batch_factor);
  return found->second;
}

using Seconds = double SystemSeconds::*;
constexpr Seconds separate = &SystemSeconds::separate, batched = &SystemSeconds::batched;

ResultOf gain(const char* device, const Workload& workload, Seconds baseline) {
  return [=](const Parameters& parameters) {
    const SystemSeconds& seconds = systems(device, parameters, workload);
    return seconds.*baseline / seconds.ours;
  };
}

ResultOf less(const ResultOf& from, const ResultOf& what) {
  return [=](const Parameters& parameters) { return from(parameters) - what(parameters); };
}

void gains() {
  for (const char* device : {"A40", "H100"}) {
    for (const Workload& workload : {uniform, wl_a, wl_b}) {
      const Range over_separate = over_corners(section, gain(device, workload, separate)), over_batched = over_corners(section, gain(device, workload, batched));
      print_row(fmt::format("MuxTune's throughput, LLaMA-7B, 4 × {}, eight jobs, {}: over HF-PEFT's and NeMo's way, over SL-PEFT's", device, workload.name),
                std::string(device) == "A40" ? "up to 2.33×; [2.33, 1.64 and 2.23, 1.85 by a secondary source]" : "larger than on A40",
                "a range; above 1 at every corner",
                fmt::format("{}{}, {}{}", over_separate.text(), over_separate.missed_unless_above(1), over_batched.text(), over_batched.missed_unless_above(1)));
    }
  }
}

/// `, name value: result`: with a value beyond the parameter's range, the others taken.
std::string beyond(const char* name, double value, const ResultOf& result) {
  Parameters parameters = corners_of(section).front();
  parameters[name] = value;
  return fmt::format(", {} {:.3g}: {:.2f}", name, value, result(parameters));
}

void directions() {
  const Range non_uniform = over_corners(section, less(gain("A40", wl_b, batched), gain("A40", uniform, batched)));
  print_row("MX-34: the gain over SL-PEFT with WL-B less that with Uniform", "above 0", "every corner",
            fmt::format("{}{}", non_uniform.text(""), non_uniform.missed_unless_above(0)));
  for (const Workload& workload : {uniform, wl_a, wl_b}) {
    for (const auto& [name, baseline] : {std::pair{"NeMo's way", separate}, std::pair{"SL-PEFT", batched}}) {
      const ResultOf faster = less(gain("H100", workload, baseline), gain("A40", workload, baseline));
      const Range range = over_corners(section, faster);
      const std::string mark = range.missed_unless_above(0);
      print_row(fmt::format("MX-35: the gain over {} on H100 less that on A40, {}", name, workload.name), "above 0", "every corner",
                fmt::format("{}{}{}", range.text(""), mark, mark.empty() ? "" : one_at_a_time(section, faster) + beyond("launch_seconds", 0, faster)));
    }
  }
}

/// MX-37: percent of the throughput that is lost without a part.
ResultOf loss(Seconds without, int64_t batch_factor) {
  return [=](const Parameters& parameters) {
    const SystemSeconds& seconds = systems("A40", parameters, wl_b, batch_factor);
    return 100 * (1 - seconds.ours / (seconds.*without));
  };
}

void ablation_of_parts() {
  constexpr int64_t light = 1, heavy = 8;
  const std::pair<const char*, Seconds> parts[] = {
      {"fusion", &SystemSeconds::no_fusion}, {"interleaving", &SystemSeconds::no_interleaving}, {"alignment", &SystemSeconds::no_alignment}};
  for (const int64_t factor : {light, heavy}) {
    std::string text;
    for (const auto& [name, part] : parts) {
      const Range lost = over_corners(section, loss(part, factor));
      text += fmt::format("{}{} {}{}", text.empty() ? "" : ", ", name, lost.text(" %"), lost.missed_unless_above(0));
    }
    print_row(fmt::format("MX-37: throughput lost without each part, WL-B, {}", factor == light ? "light load (Table 2's batches)" : "heavy load (eight times)"),
              factor == light ? "[fusion 36.1, orchestration 30.3, alignment 22.5 %]" : "[6.2, 25.1, 34.3 %]", "each above 0 at every corner", text);
  }
  const auto fusion = [](int64_t factor) { return loss(&SystemSeconds::no_fusion, factor); };
  const auto interleaving = [](int64_t factor) { return loss(&SystemSeconds::no_interleaving, factor); };
  const auto alignment = [](int64_t factor) { return loss(&SystemSeconds::no_alignment, factor); };
  const ResultOf others = [&](const Parameters& p) { return std::max(fusion(heavy)(p), interleaving(heavy)(p)); };
  struct Direction {
    const char* name;
    ResultOf result;
  };
  for (const Direction& each : {Direction{"the fall of fusion's loss from light to heavy load", less(fusion(light), fusion(heavy))},
                                Direction{"the fall of interleaving's", less(interleaving(light), interleaving(heavy))},
                                Direction{"the rise of alignment's", less(alignment(heavy), alignment(light))},
                                Direction{"alignment's loss under heavy load less the larger of the others", less(alignment(heavy), others)}}) {
    const Range range = over_corners(section, each.result);
    const std::string mark = range.missed_unless_above(0);
    print_row(fmt::format("MX-37: {}, points", each.name), "above 0", "every corner",
              fmt::format("{}{}{}", range.text(""), mark, mark.empty() ? "" : one_at_a_time(section, each.result) + beyond("memory_efficiency", 10, each.result)));
  }
}

}  // namespace

void muxtune_throughput_rows() {
  gains();
  directions();
  ablation_of_parts();
}

}  // namespace cotune
