/// The headlines of MuxTune (2.33× throughput, 5.29× memory; MX-34, MX-35, MX-37, MX-38) and mLoRA's throughput (Fig. 11; ML-14)
/// by simulation, over every corner of the ranges in data/headline_parameters.json.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "plan/cost/pipeline_seconds.h"
#include "plan/cost/weight_sharding.h"
#include "plan/fusion/hybrid_tasks.h"
#include "plan/fusion/replica_jobs.h"
#include "rows.h"
#include "schedule/pipeline/lorapp.h"

namespace cotune {
namespace {

using Parameters = std::map<std::string, double>;

/// A parameter that is not varied, by name: a number, or eight of them.
const nlohmann::json& fixed(const std::string& name) {
  static const nlohmann::json document = nlohmann::json::parse(std::ifstream(data_file("headline_parameters.json")));
  for (const nlohmann::json& each : document.at("fixed")) {
    if (each.at("name") == name) return each.at("value");
  }
  throw_user_error("bench/plan/data/headline_parameters.json: fixed: there is no {}", name);
}

std::vector<int64_t> fixed_list(const std::string& name) { return fixed(name).get<std::vector<int64_t>>(); }

/// `taken` first, then every corner.
std::vector<Parameters> corners_of(const std::string& section) {
  std::ifstream file(data_file("headline_parameters.json"));
  const nlohmann::json entries = nlohmann::json::parse(file).at(section);
  std::vector<Parameters> all(1 + (size_t{1} << entries.size()));
  for (size_t k = 0; k < entries.size(); ++k) {
    const std::string name = entries[k].at("name");
    for (size_t corner = 0; corner < all.size(); ++corner) {
      const char* which = corner == 0 ? "taken" : ((corner - 1) >> k & 1) != 0 ? "high" : "low";
      all[corner][name] = entries[k].at(which);
    }
  }
  return all;
}

std::string text_of(const Parameters& parameters) {
  std::vector<std::string> parts;
  for (const auto& [name, value] : parameters) parts.push_back(fmt::format("{} {:.3g}", name, value));
  return fmt::format("{}", fmt::join(parts, ", "));
}

/// A result at `taken`, its least and most over the corners, and where the least is.
struct Range {
  double taken = 0, least = 0, most = 0;
  Parameters at_least;
  std::string text(const char* unit = "×") const { return fmt::format("{:.2f}{} ({:.2f}–{:.2f})", taken, unit, least, most); }
};

Range over_corners(const std::vector<Parameters>& corners, const std::function<double(const Parameters&)>& result) {
  Range range;
  for (size_t k = 0; k < corners.size(); ++k) {
    const double value = result(corners[k]);
    if (k == 0) range.taken = value;
    if (k == 0 || value < range.least) range.least = value, range.at_least = corners[k];
    if (k == 0 || value > range.most) range.most = value;
  }
  return range;
}

/// "holds at every corner", or where it fails.
std::string above(const Range& range, double limit) {
  if (range.least > limit) return "the direction holds at every corner";
  return fmt::format("the direction **fails** with {}: {:.2f}", text_of(range.at_least), range.least);
}

// MuxTune's Table 2.
const std::vector<int64_t> batches = fixed_list("table2_batches"), lengths_a = fixed_list("wl_a_tokens"), lengths_b = fixed_list("wl_b_tokens"),
                           uniform_lengths = fixed_list("uniform_tokens");

enum class Padding { none, to_longest };

ReplicaJobs replica_of(const char* device, const Parameters& parameters, std::span<const int64_t> lengths, int64_t batch_factor,
                       Padding padding) {
  ReplicaJobs replica{.model = model_preset("llama-2-7b")};
  const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  for (int32_t j = 0; j < 8; ++j) {
    JobSpec spec;
    spec.adapter.r = fixed("lora_rank");
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
  replica.between_stages = {.bandwidth = std::string(device) == "H100" ? fixed("h100_link_bandwidth").get<double>() : parameters.at("link_bandwidth"),
                            .latency = fixed("muxtune_link_latency")};
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

SystemSeconds systems(const char* device, const Parameters& parameters, std::span<const int64_t> lengths, int64_t batch_factor) {
  const auto microbatches = static_cast<int64_t>(parameters.at("microbatches"));
  const auto problem_of = [&](Padding padding) {
    return fusion_problem(replica_of(device, parameters, lengths, batch_factor, padding), microbatches);
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

void muxtune_throughput() {
  const std::vector<Parameters> corners = corners_of("muxtune_throughput");
  struct Workload {
    const char* name;
    std::span<const int64_t> lengths;
  };
  const Workload workloads[] = {{"Uniform", uniform_lengths}, {"WL-A", lengths_a}, {"WL-B", lengths_b}};
  for (const char* device : {"A40", "H100"}) {
    for (const Workload& workload : workloads) {
      std::map<const Parameters*, SystemSeconds> known;
      const auto ratio = [&](double SystemSeconds::*baseline) {
        return over_corners(corners, [&](const Parameters& parameters) {
          const auto [found, is_new] = known.try_emplace(&parameters);
          if (is_new) found->second = systems(device, parameters, workload.lengths, 1);
          return found->second.*baseline / found->second.ours;
        });
      };
      const Range separate = ratio(&SystemSeconds::separate), batched = ratio(&SystemSeconds::batched);
      print_row(fmt::format("MuxTune's throughput, LLaMA-7B, 4 × {}, eight jobs, {}: over HF-PEFT's and NeMo's way, over SL-PEFT's", device, workload.name),
                std::string(device) == "A40" ? "up to 2.33×; [2.33, 1.64 and 2.23, 1.85 by a secondary source]" : "larger than on A40",
                "a range; directions at every corner",
                fmt::format("{}, {}; over the first {}, over the second {}", separate.text(), batched.text(), above(separate, 1), above(batched, 1)));
    }
  }
  const auto difference = [&](const std::function<double(const Parameters&)>& of) { return over_corners(corners, of); };
  const auto gain = [&](const char* device, std::span<const int64_t> lengths, const Parameters& parameters, double SystemSeconds::*baseline) {
    const SystemSeconds seconds = systems(device, parameters, lengths, 1);
    return seconds.*baseline / seconds.ours;
  };
  const Range non_uniform = difference([&](const Parameters& parameters) {
    return gain("A40", lengths_b, parameters, &SystemSeconds::batched) - gain("A40", uniform_lengths, parameters, &SystemSeconds::batched);
  });
  const Range faster = difference([&](const Parameters& parameters) {
    return gain("H100", lengths_b, parameters, &SystemSeconds::separate) - gain("A40", lengths_b, parameters, &SystemSeconds::separate);
  });
  print_row("MX-34: the gain over SL-PEFT with WL-B less that with Uniform", "above 0", "every corner", fmt::format("{}; {}", non_uniform.text(""), above(non_uniform, 0)));
  print_row("MX-35: the gain over NeMo's way on H100 less that on A40, WL-B", "above 0", "every corner", fmt::format("{}; {}", faster.text(""), above(faster, 0)));
  for (const int64_t factor : {1, 8}) {
    std::string parts;
    for (const auto& [name, part] : {std::pair{"fusion", &SystemSeconds::no_fusion}, std::pair{"interleaving", &SystemSeconds::no_interleaving},
                                     std::pair{"alignment", &SystemSeconds::no_alignment}}) {
      const Range loss = over_corners(corners, [&](const Parameters& parameters) {
        const SystemSeconds seconds = systems("A40", parameters, lengths_b, factor);
        return 100 * (1 - seconds.ours / (seconds.*part));
      });
      parts += fmt::format("{}{} {}{}", parts.empty() ? "" : ", ", name, loss.text(" %"), missed_unless(loss.taken > 0 && loss.least >= 0));
    }
    print_row(fmt::format("MX-37: throughput lost without each part, WL-B, {}", factor == 1 ? "light load (Table 2's batches)" : "heavy load (eight times)"),
              factor == 1 ? "[fusion 36.1, orchestration 30.3, alignment 22.5 %]" : "[6.2, 25.1, 34.3 %]", "each above 0 at every corner; fusion falls with load", parts);
  }
}

void muxtune_memory() {
  const std::vector<Parameters> corners = corners_of("muxtune_memory");
  struct Case {
    const char* name;
    const char* model;
    int64_t stages, tensor_parallel;
    std::span<const int64_t> lengths;
    int64_t paper_limit;
  };
  for (const Case& each : {Case{"GPT-2.7B, WL-A, 2 × A40", "gpt-2.7b", 1, 2, lengths_a, 15}, Case{"LLaMA-7B, WL-B, 4 × A40", "llama-2-7b", 4, 1, lengths_b, 11}}) {
    const ModelConfig model = model_preset(each.model);
    const StageShape stage = even_stages(model, each.stages, each.tensor_parallel).front();
    JobSpec spec;
    spec.adapter.r = fixed("lora_rank");
    const std::vector<AdapterShape> adapters = adapter_shapes(spec, 0, model);
    /// Bytes of one device with `tasks` tasks, each with a microbatch in flight.
    const auto bytes = [&](int64_t tasks, const Parameters& parameters, bool is_shared) {
      double total = 0, weights = 0, workspace = 0;
      for (int64_t k = 0; k < tasks; ++k) {
        const auto at = static_cast<size_t>(k % 8);
        const StageMemory memory = stage_memory(model, stage, adapters, 2, even_microbatch(batches[at], each.lengths[at], {1}), 1, 2);
        const double own = static_cast<double>(memory.adapters) + parameters.at("activation_factor") * static_cast<double>(memory.activations);
        weights = static_cast<double>(memory.weights);
        workspace = std::max(workspace, static_cast<double>(memory.workspace));
        total += own;
        if (!is_shared) total += weights + static_cast<double>(memory.workspace) + parameters.at("context_bytes");
      }
      return is_shared ? total + weights + workspace + parameters.at("context_bytes") : total;
    };
    const double room = static_cast<double>(device_preset("A40").memory_bytes);
    const auto most_tasks = [&](const Parameters& parameters, bool is_shared) {
      int64_t tasks = 0;
      while (tasks < 400 && bytes(tasks + 1, parameters, is_shared) <= room) ++tasks;
      return static_cast<double>(tasks);
    };
    const Range factor = over_corners(corners, [&](const Parameters& parameters) { const int64_t tasks = fixed("memory_tasks");
      return bytes(tasks, parameters, false) / bytes(tasks, parameters, true); });
    const Range replicated = over_corners(corners, [&](const Parameters& parameters) { return most_tasks(parameters, false); });
    const Range shared = over_corners(corners, [&](const Parameters& parameters) { return most_tasks(parameters, true); });
    print_row(fmt::format("MX-38: memory of a backbone per task over one for all, 32 tasks, {}", each.name), "up to 5.29×", "a range; above 1 at every corner",
              fmt::format("{}; {}", factor.text(), above(factor, 1)));
    print_row("the same: tasks that fit 48 GB, a backbone each; with one for all", fmt::format("{}; –", each.paper_limit), fmt::format("{} ± 2; above 32 for 7B", each.paper_limit),
              fmt::format("{:.0f} ({:.0f}–{:.0f}){}; {:.0f} ({:.0f}–{:.0f}){}", replicated.taken, replicated.least, replicated.most,
                          missed_unless(std::abs(replicated.least - static_cast<double>(each.paper_limit)) <= 2 && std::abs(replicated.most - static_cast<double>(each.paper_limit)) <= 2),
                          shared.taken, shared.least, shared.most, missed_unless(shared.least > 32)));
  }
}

void mlora_throughput() {
  const std::vector<Parameters> corners = corners_of("mlora_throughput");
  struct Case {
    const char* name;
    const char* model;
    const char* paper;
  };
  for (const Case& each : {Case{"TinyLlama-1.1B", "tinyllama-1.1b", "2.34, 1.87, 1.75×"}, Case{"Llama-2-7B", "llama-2-7b", "1.84, 1.58, 1.35×"},
                           Case{"Llama-2-13B", "llama-2-13b", "1.77, 1.46×; FSDP out of memory"}}) {
    const ModelConfig model = model_preset(each.model);
    JobSpec spec;
    spec.adapter.r = fixed("lora_rank");
    spec.adapter.target_modules = {"q_proj", "k_proj", "v_proj", "o_proj"};
    const std::vector<AdapterShape> adapters = adapter_shapes(spec, 0, model);
    const int64_t rows = fixed("mlora_rows"), tokens = fixed("mlora_tokens"), ranks = fixed("mlora_devices");
    struct Rates {
      double lorapp, one_f_one_b, tensor, sharded;
    };
    const auto rates = [&](const Parameters& parameters) {
      StageMachine machine{device_preset("A6000"), {.bandwidth = parameters.at("link_bandwidth"), .latency = fixed("mlora_link_latency")}, "float32"};
      machine.device.compute_efficiency = parameters.at("compute_efficiency");
      const auto microbatches = static_cast<int64_t>(parameters.at("microbatches"));
      double stage = 0;
      for (const StageShape& shape : even_stages(model, ranks, 1)) {
        stage = std::max(stage, stage_seconds(model, shape, adapters, even_microbatch(rows / microbatches, tokens, {1}), machine).total());
      }
      const StageShape whole{0, model.layer_count, true, true, 1};
      StageShape parallel = whole;
      parallel.tensor_parallel = ranks;
      const double all = rows * tokens;
      const double tensor = stage_seconds(model, parallel, adapters, even_microbatch(rows, tokens, {1}), machine).total();
      const double sharded = with_gathered_weights(stage_seconds(model, whole, adapters, even_microbatch(rows / ranks, tokens, {1}), machine), model, whole,
                                                   {ranks, parameters.at("gather_overlap")}, 4, machine.link).total();
      const double one_f_one_b = even_chunks_seconds(stage, microbatches, ranks);
      // GPipe and 1F1B have the same bubble; four adapters leave none (ML-14).
      return Rates{all / one_f_one_b * lorapp_speedup(ranks, ranks, microbatches), all / one_f_one_b, all / tensor, all / sharded};
    };
    const Range pipeline = over_corners(corners, [&](const Parameters& p) { return rates(p).lorapp / rates(p).one_f_one_b; });
    const Range tensor = over_corners(corners, [&](const Parameters& p) { return rates(p).lorapp / rates(p).tensor; });
    const Range sharded = over_corners(corners, [&](const Parameters& p) { return rates(p).lorapp / rates(p).sharded; });
    const Rates taken = rates(corners.front());
    print_row(fmt::format("ML-14: LoRAPP with four adapters over 1F1B, over tensor parallelism, over FSDP, {}, 4 × A6000, f32", each.name), each.paper,
              "a range; above 1 at every corner",
              fmt::format("{}, {}, {}; tokens/s {:.0f} to {:.0f}, {:.0f}, {:.0f}; over 1F1B {}; over TP {}; over FSDP {}", pipeline.text(), tensor.text(), sharded.text(),
                          taken.lorapp, taken.one_f_one_b, taken.tensor, taken.sharded, above(pipeline, 1), above(tensor, 1), above(sharded, 1)));
  }
}

}  // namespace

void headline_rows() {
  muxtune_throughput();
  muxtune_memory();
  mlora_throughput();
}

}  // namespace cotune
