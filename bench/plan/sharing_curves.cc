/// How sharing pays over sizes: MuxTune's trade-off curves (Fig. 9 and 13; MX-36), mLoRA's BatchLoRA beyond as many adapters as
/// stages (ML-19), and throughput over rank (ML-29). All by the roofline.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "plan/cost/pipeline_seconds.h"
#include "plan/fusion/hybrid_tasks.h"
#include "plan/fusion/replica_jobs.h"
#include "rows.h"
#include "schedule/pipeline/lorapp.h"

namespace cotune {
namespace {

std::vector<AdapterShape> adapters_of(const ModelConfig& model, int32_t job, int64_t rank) {
  JobSpec spec;
  spec.adapter.r = rank;
  return adapter_shapes(spec, job, model);
}

ReplicaJobs like_jobs(int32_t jobs, int64_t rows, int64_t tokens, int64_t stages) {
  ReplicaJobs replica{.model = model_preset("llama-2-7b")};
  for (int32_t j = 0; j < jobs; ++j) {
    JobShape shape{.batch_size = rows, .adapters = adapters_of(replica.model, j, 16)};
    shape.lengths.weights = {{tokens, 1.0}};
    replica.jobs.push_back(std::move(shape));
  }
  replica.stages = even_stages(replica.model, stages, 1);
  replica.machine = {device_preset("A40"), {}, "bfloat16"};
  replica.between_stages = link_preset("nvlink-112");
  return replica;
}

/// Fig. 9(a): two jobs in one microbatch, or by turns.
void spatial_or_temporal() {
  std::vector<std::string> parts;
  for (const int64_t tokens : {16, 32, 64, 128, 256, 512, 1024, 2048}) {
    const FusionProblem problem = fusion_problem(like_jobs(2, 4, tokens, 4), 4);
    parts.push_back(fmt::format("{}: {:.2f}", tokens, fusion_time(problem, {{0, 1}}).seconds / fusion_time(problem, {{0}, {1}}).seconds));
  }
  print_row("MX-36: two jobs fused over by turns, seconds of a round, by tokens of a job's microbatch; LLaMA-7B, 4 × A40, 4 microbatches", "a crossover",
            "below 1 for few tokens, above for many", fmt::format("{}", fmt::join(parts, ", ")));
}

/// Fig. 9(b): what each further job in a microbatch adds on one device.
void diminishing_batching() {
  std::vector<std::string> parts;
  double alone = 0;
  for (const int32_t jobs : {1, 2, 4, 8, 16, 32}) {
    std::vector<int32_t> all(static_cast<size_t>(jobs));
    std::iota(all.begin(), all.end(), 0);
    const double rate = jobs / fusion_time(fusion_problem(like_jobs(jobs, 1, 64, 1), 1), {all}).seconds;
    if (jobs == 1) alone = rate;
    parts.push_back(fmt::format("{}: {:.2f}×", jobs, rate / alone));
  }
  print_row("MX-36: throughput of 1, 2, … 32 fused jobs of 64 tokens over one alone, LLaMA-7B, A40", "diminishing", "concave", fmt::format("{}", fmt::join(parts, ", ")));
}

/// Fig. 13: rows of WL-B cut into chunks that reuse keys and values; each chunk is a microbatch of its own, its last padded.
void chunk_size() {
  const ReplicaJobs replica = like_jobs(1, 1, 64, 1);
  constexpr int64_t batches[] = {4, 2, 4, 4, 8, 2, 4, 4}, lengths[] = {250, 60, 250, 60, 60, 250, 250, 250};
  std::vector<std::string> parts;
  double least = 1e300;
  int64_t best = 0;
  for (const int64_t chunk : {8, 16, 32, 64, 128, 256, 512}) {
    double seconds = 0, tokens = 0;
    for (int64_t begin = 0; begin < 256; begin += chunk) {
      MicrobatchCounts counts;
      for (size_t k = 0; k < 8; ++k) {
        if (lengths[k] <= begin) continue;
        counts.tokens += batches[k] * chunk;
        counts.row_parts += batches[k];
        counts.attention_pairs += batches[k] * (chunk * begin + chunk * (chunk + 1) / 2);
      }
      counts.labelled = counts.tokens;
      counts.job_tokens = {counts.tokens};
      counts.job_atoms = {(counts.tokens + atom_tokens - 1) / atom_tokens};
      seconds += stage_seconds(replica.model, replica.stages.front(), replica.jobs.front().adapters, counts, replica.machine).total();
    }
    for (size_t k = 0; k < 8; ++k) tokens += static_cast<double>(batches[k] * lengths[k]);
    if (seconds < least) least = seconds, best = chunk;
    parts.push_back(fmt::format("{}: {:.0f}", chunk, tokens / seconds));
  }
  print_row("MX-36: tokens/s that are needed, by chunk size: rows of 60 and 250 tokens in the batches of Table 2, LLaMA-7B, A40", "U-shaped time; 64 is taken",
            "a best size inside", fmt::format("{}; the best is {}", fmt::join(parts, ", "), best));
}

/// LoRAPP with T tasks on four stages: up to four each has a slot, more are merged into four groups as even as can be. A step is two
/// microbatches: with one, the round would wait four times for the largest group.
void batched_lorapp() {
  constexpr int64_t microbatches = 2;
  struct Case {
    const char* name;
    const char* model;
    double launch_share;  ///< of a task's time: mLoRA's Fig. 14(b)
  };
  for (const Case& each : {Case{"TinyLlama-1.1B", "tinyllama-1.1b", 0.097}, Case{"Llama-2-7B", "llama-2-7b", 0.063}, Case{"Llama-2-13B", "llama-2-13b", 0.039}}) {
    const ModelConfig model = model_preset(each.model);
    const StageMachine machine{device_preset("A6000"), {}, "float32"};
    const auto group_seconds = [&](int64_t tasks) {
      std::vector<AdapterShape> adapters;
      for (int32_t k = 0; k < tasks; ++k) {
        const auto own = adapters_of(model, k, 16);
        adapters.insert(adapters.end(), own.begin(), own.end());
      }
      double slowest = 0;
      for (const StageShape& stage : even_stages(model, 4, 1)) {
        slowest = std::max(slowest, stage_seconds(model, stage, adapters,
                                                  even_microbatch(8 * tasks / microbatches, 512,
                                                                  std::vector<double>(static_cast<size_t>(tasks), 1.0 / static_cast<double>(tasks))),
                                                  machine)
                                        .total());
      }
      return slowest;
    };
    // Launches that nothing hides: a share of a task's time, paid once a microbatch of a group.
    const double overhead = each.launch_share / (1 - each.launch_share) * group_seconds(1);
    double four = 0, four_launched = 0;
    std::vector<std::string> parts;
    for (const int64_t tasks : {4, 5, 6, 8, 12}) {
      const int64_t groups = std::min<int64_t>(tasks, 4);
      double slowest = 0, slowest_launched = 0;
      double sum = 0, sum_launched = 0;
      for (int64_t g = 0; g < groups; ++g) {
        const int64_t size = tasks / groups + (g < tasks % groups ? 1 : 0);
        const double seconds = group_seconds(size);
        sum += seconds;
        sum_launched += seconds + overhead;
        slowest = std::max(slowest, seconds);
        slowest_launched = std::max(slowest_launched, seconds + overhead);
      }
      // A stage has the microbatches of all groups to compute, and a group's next step begins when its last one is through.
      const double round = std::max(microbatches * sum, (4 + microbatches - 1) * slowest);
      const double round_launched = std::max(microbatches * sum_launched, (4 + microbatches - 1) * slowest_launched);
      const double per_task = round / static_cast<double>(tasks), per_task_launched = round_launched / static_cast<double>(tasks);
      if (tasks == 4) four = per_task, four_launched = per_task_launched;
      parts.push_back(fmt::format("{}: {:+.1f}, {:+.1f} %", tasks, 100 * (per_task / four - 1), 100 * (per_task_launched / four_launched - 1)));
    }
    print_row(fmt::format("ML-19: seconds of a task with BatchLoRA in LoRAPP over those of four tasks, {}, 4 × A6000, f32: by the roofline, with "
                          "launches of {:.1f} % that nothing hides",
                          each.name, 100 * each.launch_share),
              std::string(each.model) == "tinyllama-1.1b" ? "5 tasks +0.6, 6 −8.7, 12 −12.2 %" : "–", "groups of min(T, 4); shown",
              fmt::format("{}", fmt::join(parts, "; ")));
  }
}

void rank_curve() {
  struct Case {
    const char* name;
    const char* model;
    std::vector<int64_t> ranks;
    const char* paper;
  };
  for (const Case& each : {Case{"TinyLlama-1.1B", "tinyllama-1.1b", {4, 8, 16, 32}, "10,526 10,468 10,316 10,286 (−2.3 %)"},
                           Case{"Llama-2-7B", "llama-2-7b", {16, 32, 64, 128}, "2,309 2,259 2,252 2,243 (−2.9 %)"},
                           Case{"Llama-2-13B", "llama-2-13b", {16, 32, 64, 128}, "1,246 1,245 1,225 1,207 (−3.1 %)"}}) {
    const ModelConfig model = model_preset(each.model);
    const StageMachine machine{device_preset("A6000"), {}, "float32"};
    std::vector<double> rates;
    for (const int64_t rank : each.ranks) {
      JobSpec spec;
      spec.adapter.r = rank;
      spec.adapter.target_modules = {"q_proj", "k_proj", "v_proj", "o_proj"};
      double slowest = 0;
      for (const StageShape& stage : even_stages(model, 4, 1)) {
        slowest = std::max(slowest, stage_seconds(model, stage, adapter_shapes(spec, 0, model), even_microbatch(2, 512, {1}), machine).total());
      }
      // Four adapters in four microbatches: no bubble.
      rates.push_back(2 * 512 / slowest * (1 - lorapp_bubble_ratio(4, 4, 4)));
    }
    std::vector<std::string> parts;
    for (const double rate : rates) parts.push_back(fmt::format("{:.0f}", rate));
    print_row(fmt::format("ML-29: tokens/s over rank {}, {}, LoRAPP with four adapters, 4 × A6000, f32", fmt::join(each.ranks, ", "), each.name), each.paper, "within 5 %",
              fmt::format("{} ({:+.1f} %)", fmt::join(parts, " "), 100 * (rates.back() / rates.front() - 1)));
  }
}

}  // namespace

void sharing_curve_rows() {
  spatial_or_temporal();
  diminishing_batching();
  chunk_size();
  batched_lorapp();
  rank_curve();
}

}  // namespace cotune
