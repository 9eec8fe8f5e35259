#include <gtest/gtest.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "base/file.h"
#include "schedule/pipeline/default_order.h"
#include "schedule/pipeline/random_work.h"
#include "schedule/pipeline/render.h"
#include "schedule/pipeline/verify_pipeline.h"
#include "support/source_folder.h"

namespace cotune {
namespace {

const std::filesystem::path root = source_folder();

bool is_update() {
  return std::getenv("COTUNE_UPDATE") != nullptr;
}

/// Four tasks of unlike length on four stages, the last one heavier by its head, two rounds of two
/// microbatches.
PipelineWork example_work() {
  PipelineWork work = uniform_work(4, 4, 2, 2, {}, {8 << 20, 8 << 20});
  const std::vector<double> stage_speed{1.0, 0.95, 0.95, 1.15};
  for (PipelineMicrobatch& microbatch : work.microbatches) {
    const double size = std::vector<double>{0.5, 1.0, 0.4, 0.7}[static_cast<size_t>(microbatch.hybrid_task)];
    for (size_t s = 0; s < 4; ++s) {
      microbatch.cost[s] = {.forward_s = 0.010 * size * stage_speed[s],
                            .backward_s = 0.018 * size * stage_speed[s],
                            .kept_bytes = static_cast<int64_t>(200 * size) << 20};
    }
  }
  for (PipelineJob& job : work.jobs) job.optimizer_s = 0.0004;
  return work;
}

const PipelineCluster example_cluster{.link = {.latency_s = 20e-6, .bytes_per_s = 12e9}};

struct Shown {
  std::string name;
  ComputeOrder order;
};

std::vector<Shown> shown_orders(const PipelineWork& work) {
  return {{"GPipe", gpipe(work)},
          {"1F1B, task by task", one_f_one_b(work, BatchBoundary::flush)},
          {"1F1B, continuous", one_f_one_b(work, BatchBoundary::continuous)},
          {"LoRAPP", lorapp(work, example_cluster)},
          {"MuxTune's template", structured_template(work, example_cluster)},
          {"default", choose_order(work, example_cluster).order}};
}

std::string generated_block() {
  const PipelineWork work = example_work();
  std::string table =
      "| order | time of two rounds | idle | peak kept, ranks 0 to 3 (MiB) | messages "
      "|\n|---|---|---|---|---|\n";
  std::string diagrams;
  for (const Shown& shown : shown_orders(work)) {
    const PipelineSchedule schedule = make_schedule(work, shown.order, example_cluster);
    const PipelineFacts facts = verify(work, schedule);
    const PipelineSimulation simulation = simulate(work, schedule, example_cluster);
    std::string peaks;
    for (const int64_t bytes : facts.peak_kept_bytes) {
      peaks += fmt::format("{}{}", peaks.empty() ? "" : ", ", bytes >> 20);
    }
    table += fmt::format("| {} | {:.0f} ms | {:.1f}% | {} | {} |\n", shown.name, 1e3 * simulation.makespan_s,
                         100 * simulation.bubble_ratio(), peaks, facts.message_count);
    if (shown.name != "1F1B, task by task" && shown.name != "LoRAPP") continue;
    diagrams += fmt::format("\n{}:\n\n```\n{}```\n", shown.name,
                            render_text(schedule, simulation, {.width = 110, .memory = false}));
  }
  return table + diagrams;
}

TEST(SchedulesPage, ShowsWhatTheGeneratorsAndTheSimulatorGive) {
  const std::filesystem::path path = root / "docs/schedules.md";
  const std::string begin = "<!-- schedules:begin -->\n", end = "<!-- schedules:end -->";
  std::string page = read_file(path);
  const size_t from = page.find(begin) + begin.size();
  const size_t to = page.find(end);
  ASSERT_LT(from, to + 1);
  if (is_update()) {
    page.replace(from, to - from, generated_block());
    write_file_atomically(path, page);
    return;
  }
  EXPECT_EQ(page.substr(from, to - from), generated_block()) << "run COTUNE_UPDATE=1 build/test_schedule";
}

TEST(SchedulesPage, PictureIsTheGeneratedOne) {
  const std::filesystem::path path = root / "docs/pictures/schedule.svg";
  const PipelineWork work = example_work();
  const PipelineSchedule schedule =
      make_schedule(work, choose_order(work, example_cluster).order, example_cluster);
  const std::string svg = render_svg(schedule, simulate(work, schedule, example_cluster),
                                     {.title = "Four fine-tuning tasks on four stages, two rounds"});
  if (is_update()) write_file_atomically(path, svg);
  EXPECT_EQ(read_file(path), svg) << "run COTUNE_UPDATE=1 build/test_schedule";
}

}  // namespace
}  // namespace cotune
