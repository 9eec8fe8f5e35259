#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "base/counted.h"
#include "base/error.h"
#include "base/quantity_text.h"
#include "base/xml_text.h"
#include "schedule/pipeline/render.h"

namespace cotune {
namespace {

constexpr double left = 64;  // of the bars
constexpr double right = 96;
constexpr double lane_height = 30;
constexpr double memory_height = 22;
constexpr double lane_gap = 16;
constexpr double axis_height = 30;
constexpr double label_px = 6.2;  // width of a digit

/// Hue in turns, saturation and lightness from 0 to 1.
std::string colour(double hue, double saturation, double lightness) {
  std::array<int, 3> channels{};
  for (size_t i = 0; i < 3; ++i) {
    const double k = std::fmod(static_cast<double>(i == 0 ? 0 : i == 1 ? 8 : 4) + 12 * hue, 12.0);
    const double amount = saturation * std::min(lightness, 1 - lightness);
    const double value = lightness - amount * std::max(-1.0, std::min({k - 3, 9 - k, 1.0}));
    channels[i] = static_cast<int>(std::lround(255 * value));
  }
  return fmt::format("#{:02x}{:02x}{:02x}", channels[0], channels[1], channels[2]);
}

double hue_of(int32_t task) {
  return std::fmod(0.58 + 0.381966 * task, 1.0);
}  // golden angle: neighbours differ
std::string forward_colour(int32_t task) {
  return colour(hue_of(task), 0.60, 0.74);
}
std::string backward_colour(int32_t task) {
  return colour(hue_of(task), 0.52, 0.44);
}

/// About ten steps of 1, 2 or 5 times a power of ten.
double tick_s(double makespan_s) {
  const double rough = makespan_s / 10;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  for (const double step : {1.0, 2.0, 5.0}) {
    if (rough <= step * power) return step * power;
  }
  return 10 * power;
}

class SvgWriter {
 public:
  SvgWriter(const PipelineSchedule& schedule, const PipelineSimulation& simulation, const SvgChart& chart)
      : schedule_(schedule), simulation_(simulation), chart_(chart) {
    top_ = (chart.title.empty() ? 8 : 32) + 22 + 24;
    px_per_s_ = simulation.makespan_s > 0
                    ? (static_cast<double>(chart.width) - left - right) / simulation.makespan_s
                    : 0;
    for (const SimulatedRank& rank : simulation.ranks) highest_ = std::max(highest_, rank.peak_bytes);
    for (const std::vector<Action>& actions : schedule.ranks) {
      for (const Action& action : actions) {
        if (action.kind == ActionKind::forward) tasks_.insert(action.hybrid_task);
      }
    }
  }

  std::string run() {
    const double height = lane_top(simulation_.ranks.size()) + axis_height;
    out_ = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1:.0f}\" viewBox=\"0 0 {0} "
        "{1:.0f}\" "
        "font-family=\"Helvetica, Arial, sans-serif\" font-size=\"11\">\n"
        "<rect width=\"{0}\" height=\"{1:.0f}\" fill=\"#ffffff\"/>\n",
        chart_.width, height);
    head();
    axis();
    for (size_t rank = 0; rank < simulation_.ranks.size(); ++rank) lane(rank);
    transfers();
    return out_ + "</svg>\n";
  }

 private:
  double lane_top(size_t rank) const {
    return top_ +
           static_cast<double>(rank) * (lane_height + (chart_.memory ? memory_height + 4 : 0) + lane_gap);
  }
  double x(double time_s) const { return left + time_s * px_per_s_; }

  void text(double x, double y, const std::string& content,
            const std::string& attributes = "fill=\"#333333\"") {
    out_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" {}>{}</text>\n", x, y, attributes, xml_text(content));
  }

  void head() {
    double y = 8;
    if (!chart_.title.empty()) {
      y += 16;
      text(left, y, chart_.title, "fill=\"#111111\" font-size=\"16\" font-weight=\"bold\"");
      y += 8;
    }
    y += 12;
    text(left, y,
         fmt::format("{}, {:.1f}% idle, {}, {}", seconds_text(simulation_.makespan_s),
                     100 * simulation_.bubble_ratio(), counted(simulation_.message_count, "message"),
                     bytes_text(simulation_.message_bytes)));
    y += 22;
    legend(y);
  }

  void legend(double y) {
    double at = left;
    const double end = static_cast<double>(chart_.width) - 330;
    for (const int32_t task : tasks_) {
      const std::string name = fmt::format("task {}", task);
      if (at + 34 + label_px * static_cast<double>(name.size()) > end) {
        text(at, y, "…");
        at += 18;
        break;
      }
      box(at, y - 9, 10, 10, forward_colour(task));
      box(at + 10, y - 9, 10, 10, backward_colour(task));
      text(at + 24, y, name);
      at += 40 + label_px * static_cast<double>(name.size());
    }
    text(at + 6, y, "light: forward, dark: backward, black: optimizer step", "fill=\"#777777\"");
  }

  void box(double x, double y, double width, double height, const std::string& fill) {
    out_ += fmt::format("<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.1f}\" fill=\"{}\"/>\n",
                        x, y, width, height, fill);
  }

  void axis() {
    if (simulation_.makespan_s <= 0) return;
    const double bottom = lane_top(simulation_.ranks.size()) - lane_gap + 8;
    const double step = tick_s(simulation_.makespan_s);
    for (int64_t i = 0; static_cast<double>(i) * step <= simulation_.makespan_s * (1 + 1e-9); ++i) {
      const double at = x(static_cast<double>(i) * step);
      out_ += fmt::format("<path d=\"M{0:.1f} {1:.1f}V{2:.1f}\" stroke=\"#e4e4e4\" fill=\"none\"/>\n", at,
                          top_ - 4, bottom);
      text(at, bottom + 14, seconds_text(static_cast<double>(i) * step),
           "fill=\"#777777\" text-anchor=\"middle\"");
    }
  }

  void lane(size_t r) {
    const SimulatedRank& rank = simulation_.ranks[r];
    const double y = lane_top(r);
    text(8, y + lane_height / 2 + 4, fmt::format("rank {}", r));
    text(static_cast<double>(chart_.width) - right + 8, y + lane_height / 2 + 4,
         fmt::format("{:.1f}% busy", 100 * (1 - simulation_.bubble_ratio(r))), "fill=\"#777777\"");
    out_ +=
        fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"#f5f5f5\"/>\n",
                    left, y, static_cast<double>(chart_.width) - left - right, lane_height);
    for (const SimulatedSpan& span : rank.spans) bar(schedule_.ranks[r][span.action], span, y);
    if (chart_.memory) memory(rank, y + lane_height + 4);
  }

  void bar(const Action& action, const SimulatedSpan& span, double y) {
    const bool is_step = action.kind == ActionKind::optimizer_step;
    const bool is_forward = action.kind == ActionKind::forward;
    const double width = (span.end_s - span.start_s) * px_per_s_;
    if (width <= 0) return;
    const std::string name = is_step ? fmt::format("optimizer step {} of job {}", action.job_step, action.job)
                                     : fmt::format("{} of microbatch {}, task {}", to_string(action.kind),
                                                   action.microbatch, action.hybrid_task);
    const double gap = width > 3 ? 0.6 : 0;  // a seam between neighbours
    out_ += fmt::format(
        "<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.1f}\" fill=\"{}\"><title>{}, stage {}: "
        "{} to {}"
        "</title></rect>\n",
        x(span.start_s), y, width - gap, lane_height,
        is_step      ? "#1a1a1a"
        : is_forward ? forward_colour(action.hybrid_task)
                     : backward_colour(action.hybrid_task),
        xml_text(name), action.stage, seconds_text(span.start_s), seconds_text(span.end_s));
    const std::string number = std::to_string(action.microbatch);
    if (!is_step && width > label_px * static_cast<double>(number.size()) + 4) {
      text(x(span.start_s) + width / 2, y + lane_height / 2 + 4, number,
           fmt::format("text-anchor=\"middle\" fill=\"{}\"", is_forward ? "#222222" : "#ffffff"));
    }
  }

  void memory(const SimulatedRank& rank, double y) {
    if (highest_ == 0) return;
    const auto level = [&](int64_t bytes) {
      return y + memory_height * (1 - static_cast<double>(bytes) / static_cast<double>(highest_));
    };
    std::string path = fmt::format("M{:.1f} {:.1f}", left, level(0));
    for (const MemorySample& sample : rank.memory) {
      path += fmt::format("H{:.2f}V{:.1f}", x(sample.time_s), level(sample.bytes));
    }
    path += fmt::format("H{:.2f}V{:.1f}Z", x(simulation_.makespan_s), level(0));
    out_ += fmt::format("<path d=\"{}\" fill=\"#c9d3dc\" stroke=\"none\"/>\n", path);
    text(static_cast<double>(chart_.width) - right + 8, y + memory_height - 2, bytes_text(rank.peak_bytes),
         "fill=\"#8899a6\" font-size=\"10\"");
  }

  void transfers() {
    for (const SimulatedTransfer& transfer : simulation_.transfers) {
      const bool is_down = transfer.to > transfer.from;
      const double from = lane_top(static_cast<size_t>(transfer.from)) + (is_down ? lane_height : 0);
      const double to = lane_top(static_cast<size_t>(transfer.to)) + (is_down ? 0 : lane_height);
      out_ += fmt::format(
          "<path d=\"M{:.1f} {:.1f}L{:.1f} {:.1f}\" stroke=\"#555555\" stroke-opacity=\"0.35\" "
          "stroke-width=\"0.8\" "
          "fill=\"none\"/>\n",
          x(transfer.start_s), from, x(transfer.end_s), to);
    }
  }

  const PipelineSchedule& schedule_;
  const PipelineSimulation& simulation_;
  const SvgChart& chart_;
  double top_ = 0;
  double px_per_s_ = 0;
  int64_t highest_ = 0;
  std::set<int32_t> tasks_;
  std::string out_;
};

}  // namespace

std::string render_svg(const PipelineSchedule& schedule, const PipelineSimulation& simulation,
                       const SvgChart& chart) {
  COTUNE_CHECK(chart.width >= 400, "a chart of {} pixels", chart.width);
  return SvgWriter(schedule, simulation, chart).run();
}

}  // namespace cotune
