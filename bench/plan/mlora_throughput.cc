/// mLoRA's throughput (Fig. 11; ML-14), over every corner of the ranges in data/headline_parameters.json, and whether it fits. LoRAPP and
/// 1F1B are simulated, on the stages as they are and over the link; tensor parallelism and FSDP, which have no pipeline, are sums.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "headline_parameters.h"
#include "plan/cost/weight_sharding.h"
#include "plan/shapes/cluster.h"
#include "plan/shapes/job_shape.h"
#include "rows.h"
#include "schedule/pipeline/lorapp.h"
#include "schedule/pipeline/one_f_one_b.h"
#include "schedule/pipeline/simulate.h"

namespace cotune {
namespace {

const char* const section = "mlora_throughput";
constexpr int64_t element_size = 4;

struct Case {
  const char* name;
  const char* model;
  const char* paper;    ///< LoRAPP over 1F1B, TP and FSDP
  double paper_rate;    ///< tokens/s of LoRAPP
  int64_t paper_tasks;  ///< that LoRAPP holds (Fig. 7)
  bool fsdp_fits;       ///< by the paper
};

/// One adapter of rank 16 at q, k, v and o, rows of mLoRA's batch, four devices.
class FourDevices {
 public:
  explicit FourDevices(const Case& each) : model_(model_preset(each.model)) {
    JobSpec spec;
    spec.adapter.r = fixed_parameter("lora_rank");
    spec.adapter.target_modules = {"q_proj", "k_proj", "v_proj", "o_proj"};
    adapters_ = adapter_shapes(spec, 0, model_);
    parallel_.tensor_parallel = ranks_;
  }

  struct Values {
    double lorapp, one_f_one_b, tensor, sharded;
  };

  /// Tokens/s.
  Values rates(const Parameters& parameters) const {
    StageMachine machine{device_preset("A6000"), {.bandwidth = parameters.at("link_bandwidth"), .latency = fixed_parameter("mlora_link_latency")}, "float32"};
    machine.device.compute_efficiency = parameters.at("compute_efficiency");
    const auto microbatches = static_cast<int64_t>(parameters.at("microbatches"));
    const double tensor = stage_seconds(model_, parallel_, adapters_, of_rows(rows_), machine).total();
    const double sharded = with_gathered_weights(stage_seconds(model_, whole_, adapters_, of_rows(rows_ / ranks_), machine), model_, whole_,
                                                 {ranks_, parameters.at("gather_overlap")}, element_size, machine.link).total();
    const auto all = static_cast<double>(rows_ * tokens_);
    return {static_cast<double>(ranks_) * all / lorapp_seconds(microbatches, machine), all / one_f_one_b_seconds(microbatches, machine),
            all / tensor, all / sharded};
  }

  /// GB of the fullest device under LoRAPP with a batch of each adapter in flight.
  double lorapp_gigabytes(int64_t adapter_count) const {
    double most = 0;
    for (const StageShape& stage : stages_) {
      StageMemory memory = stage_memory(model_, stage, adapters_, 2, of_rows(rows_), adapter_count, element_size);
      memory.adapters *= adapter_count;
      most = std::max(most, 1e-9 * static_cast<double>(memory.total()));
    }
    return most;
  }

  /// The same of all systems, LoRAPP's with four adapters; FSDP has `rows` rows on every rank and so many times the activations of our operator list.
  Values gigabytes(double activation_factor, int64_t microbatches, int64_t rows) const {
    const auto scaled = [&](const StageMemory& memory) {
      return 1e-9 * (static_cast<double>(memory.total()) + (activation_factor - 1) * static_cast<double>(memory.activations));
    };
    const auto of = [&](const StageShape& stage, int64_t row_count, int64_t in_flight) {
      return stage_memory(model_, stage, adapters_, 2, of_rows(row_count), in_flight, element_size);
    };
    Values values{.lorapp = lorapp_gigabytes(ranks_)};
    for (size_t s = 0; s < stages_.size(); ++s) {
      const int64_t in_flight = std::min(microbatches, ranks_ - static_cast<int64_t>(s));
      values.one_f_one_b = std::max(values.one_f_one_b, scaled(of(stages_[s], rows_ / microbatches, in_flight)));
    }
    values.tensor = scaled(of(parallel_, rows_, 1));
    values.sharded = scaled(with_sharded_weights(of(whole_, rows, 1), model_, whole_, {.shards = ranks_}, {.dtype = "float32"}));
    return values;
  }
  double whole_weights() const { return 1e-9 * static_cast<double>(frozen_bytes(model_, whole_, element_size)); }
  int64_t rows_of_a_rank() const { return rows_ / ranks_; }
  int64_t rows() const { return rows_; }

 private:
  /// Of a step of each of as many adapters as stages, in the steady region: without what filling and draining take once in a run.
  double lorapp_seconds(int64_t microbatches, const StageMachine& machine) const {
    return round_seconds(ranks_, microbatches, machine, [](const PipelineWork& work) { return lorapp(work); });
  }
  /// Of a step of one adapter.
  double one_f_one_b_seconds(int64_t microbatches, const StageMachine& machine) const {
    return round_seconds(1, microbatches, machine, [](const PipelineWork& work) { return one_f_one_b(work, BatchBoundary::flush); });
  }

  template <typename Order>
  double round_seconds(int64_t adapter_count, int64_t microbatches, const StageMachine& machine, const Order& order) const {
    const int64_t rows = rows_ / microbatches;
    std::vector<StageCost> costs;
    for (const StageShape& stage : stages_) {
      const StageSeconds seconds = stage_seconds(model_, stage, adapters_, of_rows(rows), machine);
      costs.push_back({.forward_s = seconds.forward, .backward_s = seconds.backward});
    }
    const MessageBytes bytes = rows * tokens_ * token_bytes(model_.hidden_size, element_size);
    const PipelineCluster cluster{.link = {.latency_s = machine.link.latency, .bytes_per_s = machine.link.bandwidth}};
    const auto makespan_s = [&](int32_t rounds) {
      PipelineWork work = uniform_work(static_cast<int32_t>(ranks_), static_cast<int32_t>(adapter_count), static_cast<int32_t>(microbatches),
                                       rounds, {}, bytes);
      for (PipelineMicrobatch& microbatch : work.microbatches) microbatch.cost = costs;
      return simulate(work, make_schedule(work, order(work)), cluster).makespan_s;
    };
    constexpr int32_t rounds = 8;
    return (makespan_s(2 * rounds) - makespan_s(rounds)) / rounds;
  }

  MicrobatchCounts of_rows(int64_t rows) const { return even_microbatch(rows, tokens_, {1}); }

  ModelConfig model_;
  std::vector<AdapterShape> adapters_;
  int64_t rows_ = fixed_parameter("mlora_rows"), tokens_ = fixed_parameter("mlora_tokens"), ranks_ = fixed_parameter("mlora_devices");
  std::vector<StageShape> stages_ = even_stages(model_, ranks_, 1);
  StageShape whole_{0, model_.layer_count, true, true, 1}, parallel_ = whole_;
};

}  // namespace

void mlora_throughput_rows() {
  for (const Case& each : {Case{"TinyLlama-1.1B", "tinyllama-1.1b", "2.34, 1.87, 1.75×", 10'748, 12, true}, Case{"Llama-2-7B", "llama-2-7b", "1.84, 1.58, 1.35×", 2'364, 4, true},
                           Case{"Llama-2-13B", "llama-2-13b", "1.77, 1.46×; FSDP out of memory", 1'281, 2, false}}) {
    const FourDevices devices(each);
    using Values = FourDevices::Values;
    const auto over = [&](double Values::*baseline) {
      const Range range = over_corners(section, [&](const Parameters& parameters) {
        const Values rates = devices.rates(parameters);
        return rates.lorapp / rates.*baseline;
      });
      return range.text() + range.missed_unless_above(1);
    };
    const ResultOf lorapp = [&](const Parameters& parameters) { return devices.rates(parameters).lorapp; };
    const Parameters taken = corners_of(section).front();
    const Values rates = devices.rates(taken);
    print_row(fmt::format("ML-14: LoRAPP with four adapters over 1F1B, over tensor parallelism, over FSDP, {}, 4 × A6000, f32", each.name), each.paper,
              "a range; above 1 at every corner", fmt::format("{}, {}, {}", over(&Values::one_f_one_b), over(&Values::tensor), over(&Values::sharded)));
    const Range range = over_corners(section, lorapp);
    print_row("the same: tokens/s of LoRAPP; of 1F1B, tensor parallelism and FSDP", fmt::format("{:.0f}", each.paper_rate), "inside the range",
              fmt::format("{:.0f} ({:.0f}–{:.0f}){}; {:.0f}, {:.0f}, {:.0f}{}, compute_efficiency {:.3f}: {:.0f}", range.taken, range.least, range.most,
                          missed_unless(range.least <= each.paper_rate && each.paper_rate <= range.most), rates.one_f_one_b, rates.tensor, rates.sharded,
                          one_at_a_time(section, lorapp, "", 0), value_that_gives(section, "compute_efficiency", 0.05, 1, each.paper_rate, lorapp), each.paper_rate));
    const auto microbatches = static_cast<int64_t>(taken.at("microbatches"));
    const Values memory = devices.gigabytes(1, microbatches, devices.rows_of_a_rank());
    const double room = 1e-9 * static_cast<double>(device_preset("A6000").memory_bytes);
    const auto sharded = [&](int64_t rows) {
      return [&devices, microbatches, rows](const Parameters& parameters) { return devices.gigabytes(parameters.at("activation_factor"), microbatches, rows).sharded; };
    };
    const double factor = value_that_gives("muxtune_memory", "activation_factor", 1, 50, room, sharded(devices.rows_of_a_rank()));
    int64_t tasks = 0;
    while (devices.lorapp_gigabytes(tasks + 1) <= room) ++tasks;
    print_row(fmt::format("the same: GB of a device of {:.1f}: LoRAPP with four adapters, 1F1B, tensor parallelism, FSDP; adapters that LoRAPP holds",
                          room),
              fmt::format("FSDP {}; {}", each.fsdp_fits ? "fits" : "does not fit", each.paper_tasks),
              fmt::format("the same; at least {}", each.paper_tasks),
              fmt::format("{:.1f}, {:.1f}, {:.1f}, {:.1f}{}; {}{}. FSDP takes more than there is from activation_factor {:.2f} on; {:.1f} with {} "
                          "rows on every rank in place of {}; "
                          "whole weights before they are divided: {:.1f}",
                          memory.lorapp, memory.one_f_one_b, memory.tensor, memory.sharded, missed_unless((memory.sharded <= room) == each.fsdp_fits),
                          tasks, missed_unless(tasks >= each.paper_tasks), factor, devices.gigabytes(1, microbatches, devices.rows()).sharded,
                          devices.rows(), devices.rows_of_a_rank(), devices.whole_weights()));
  }
}

}  // namespace cotune
