#include <algorithm>
#include <array>
#include <cmath>

#include "base/counted.h"
#include "base/error.h"
#include "base/quantity_text.h"
#include "schedule/pipeline/render.h"

namespace cotune {
namespace {

constexpr std::array<const char*, 9> bars = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
constexpr std::array<const char*, 9> ascii_bars = {" ", ".", ":", "-", "=", "+", "*", "#", "@"};

std::string letter_of(const Action& action) {
  if (action.kind == ActionKind::optimizer_step) return "*";
  const char first = action.kind == ActionKind::forward ? 'A' : 'a';
  return std::string(1, static_cast<char>(first + action.hybrid_task % 26));
}

/// What takes most of each column.
std::string activity_line(const std::vector<Action>& actions, const SimulatedRank& rank, int64_t columns,
                          double column_s, const std::string& idle) {
  std::vector<double> most(static_cast<size_t>(columns), 0.0);
  std::vector<double> busy(static_cast<size_t>(columns), 0.0);
  std::vector<std::string> shown(static_cast<size_t>(columns), idle);
  for (const SimulatedSpan& span : rank.spans) {
    const auto first = static_cast<int64_t>(span.start_s / column_s);
    for (int64_t c = std::max<int64_t>(0, first);
         c < columns && static_cast<double>(c) * column_s < span.end_s; ++c) {
      const auto column = static_cast<size_t>(c);
      const double covered = std::min(span.end_s, static_cast<double>(c + 1) * column_s) -
                             std::max(span.start_s, static_cast<double>(c) * column_s);
      busy[column] += covered;
      if (covered <= most[column]) continue;
      most[column] = covered;
      shown[column] = letter_of(actions[span.action]);
    }
  }
  std::string line;
  for (size_t c = 0; c < shown.size(); ++c) line += busy[c] < column_s / 2 ? idle : shown[c];
  return line;
}

/// The highest that memory was in each column.
std::string memory_line(const SimulatedRank& rank, int64_t columns, double column_s, int64_t highest,
                        bool unicode) {
  std::string line;
  size_t next = 0;
  int64_t bytes = 0;
  for (int64_t c = 0; c < columns; ++c) {
    int64_t most = bytes;
    for (; next < rank.memory.size() && rank.memory[next].time_s < static_cast<double>(c + 1) * column_s;
         ++next) {
      bytes = rank.memory[next].bytes;
      most = std::max(most, bytes);
    }
    const auto height = static_cast<size_t>(
        highest == 0 ? 0 : std::lround(8.0 * static_cast<double>(most) / static_cast<double>(highest)));
    line += unicode ? bars[std::min<size_t>(height, 8)] : ascii_bars[std::min<size_t>(height, 8)];
  }
  return line;
}

}  // namespace

std::string render_text(const PipelineSchedule& schedule, const PipelineSimulation& simulation,
                        const TextChart& chart) {
  COTUNE_CHECK(chart.width >= 30, "a chart of {} columns", chart.width);
  const std::string bar = chart.unicode ? "│" : "|";
  const auto label_width = static_cast<int64_t>(fmt::format("rank {}", simulation.ranks.size() - 1).size());
  const int64_t columns = chart.width - label_width - 2 - 7;
  const double column_s =
      simulation.makespan_s > 0 ? simulation.makespan_s / static_cast<double>(columns) : 1;
  int64_t highest = 0;
  for (const SimulatedRank& rank : simulation.ranks) highest = std::max(highest, rank.peak_bytes);

  std::string text = fmt::format(
      "{}, {:.1f}% idle, {}, {}\n", seconds_text(simulation.makespan_s, chart.unicode),
      100 * simulation.bubble_ratio(), counted(simulation.message_count, "message"), bytes_text(simulation.message_bytes));
  for (size_t r = 0; r < simulation.ranks.size(); ++r) {
    const SimulatedRank& rank = simulation.ranks[r];
    text += fmt::format("{:<{}}{}{}{} {:5.1f}%\n", fmt::format("rank {}", r), label_width, bar,
                        activity_line(schedule.ranks[r], rank, columns, column_s, chart.unicode ? "·" : "."),
                        bar, 100 * (1 - simulation.bubble_ratio(r)));
    if (!chart.memory) continue;
    text += fmt::format("{:<{}}{}{}{} {}\n", "", label_width, bar,
                        memory_line(rank, columns, column_s, highest, chart.unicode), bar,
                        bytes_text(rank.peak_bytes));
  }
  return text;
}

}  // namespace cotune
