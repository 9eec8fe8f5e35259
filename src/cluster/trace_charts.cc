#include "cluster/trace_charts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>

#include "base/xml_text.h"

namespace cotune {
namespace {

// Colour-blind safe (Okabe and Ito 2008), then again, dashed.
constexpr std::array<const char*, 7> colours = {"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#555555"};

std::string number(double value) {
  if (value >= 1e6) return fmt::format("{:.4g}M", value / 1e6);
  if (value >= 1e4) return fmt::format("{:.4g}k", value / 1e3);
  return fmt::format("{:.4g}", value);
}

/// At most about `count` steps of 1, 2 or 5 times a power of ten.
double tick_of(double range, int count) {
  const double rough = range / count;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  for (const double step : {1.0, 2.0, 5.0}) {
    if (rough <= step * power * 1.0001) return step * power;
  }
  return 10 * power;
}

struct Curve {
  std::string name;
  std::vector<std::pair<double, double>> points;
};

class Svg {
 public:
  explicit Svg(double width, double height) : width_(width), height_(height) {}

  void text(double x, double y, const std::string& words, const char* anchor = "start", int size = 12) {
    body_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" font-size=\"{}\">{}</text>\n", x, y, anchor, size, xml_text(words));
  }
  void line(double x1, double y1, double x2, double y2, const char* colour = "#dddddd") {
    body_ += fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\"/>\n", x1, y1, x2, y2, colour);
  }
  void bar(double x, double y, double width, double height, size_t place, const std::string& hover) {
    body_ += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\"><title>{}</title></rect>\n", x, y, width,
                         height, colours[place % colours.size()], xml_text(hover));
  }
  void curve(const std::vector<std::pair<double, double>>& points, size_t place, const std::string& hover) {
    std::string path;
    for (const auto& [x, y] : points) path += fmt::format("{}{:.1f},{:.1f}", path.empty() ? "" : " ", x, y);
    const char* dashes = place >= colours.size() ? " stroke-dasharray=\"6 3\"" : "";
    body_ += fmt::format("<polyline fill=\"none\" stroke-width=\"1.8\" stroke=\"{}\"{} points=\"{}\"><title>{}</title></polyline>\n",
                         colours[place % colours.size()], dashes, path, xml_text(hover));
  }
  void legend(double x, double y, const std::vector<std::string>& names) {
    for (size_t i = 0; i < names.size(); ++i) {
      curve({{x, y + 18 * static_cast<double>(i)}, {x + 22, y + 18 * static_cast<double>(i)}}, i, names[i]);
      text(x + 28, y + 4 + 18 * static_cast<double>(i), names[i]);
    }
  }
  std::string finish() const {
    return fmt::format("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} {1:.0f}\" "
                       "font-family=\"sans-serif\">\n<rect width=\"{0:.0f}\" height=\"{1:.0f}\" fill=\"#ffffff\"/>\n{2}</svg>\n",
                       width_, height_, body_);
  }

 private:
  double width_, height_;
  std::string body_;
};

struct Frame {
  double x = 70, y = 40, width = 620, height = 260;
};

/// Axes, grid and curves in a frame; x in minutes, linear or logarithmic, y from 0 to `most`.
void draw(Svg& svg, const Frame& frame, const std::vector<Curve>& curves, bool logarithmic, double most, const std::string& title,
          const std::string& x_name) {
  double least_x = 1e300, most_x = 0;
  for (const Curve& each : curves) {
    for (const auto& [x, y] : each.points) {
      if (logarithmic && x <= 0) continue;
      least_x = std::min(least_x, x);
      most_x = std::max(most_x, x);
    }
  }
  if (most_x <= 0) return svg.text(frame.x, frame.y + 20, "nothing finished");
  if (logarithmic) {
    least_x = std::pow(10, std::floor(std::log10(least_x)));
    most_x = std::max(10 * least_x, std::pow(10, std::ceil(std::log10(most_x))));
  } else {
    least_x = 0;
  }
  const auto at_x = [&](double x) {
    const double share = logarithmic ? std::log(std::max(x, least_x) / least_x) / std::log(most_x / least_x) : (x - least_x) / (most_x - least_x);
    return frame.x + frame.width * std::clamp(share, 0.0, 1.0);
  };
  const auto at_y = [&](double y) { return frame.y + frame.height * (1 - std::clamp(y / most, 0.0, 1.0)); };
  svg.text(frame.x, frame.y - 10, title, "start", 14);
  for (double y = 0; y <= most * 1.0001; y += tick_of(most, 5)) {
    svg.line(frame.x, at_y(y), frame.x + frame.width, at_y(y));
    svg.text(frame.x - 6, at_y(y) + 4, number(y), "end");
  }
  const double step = logarithmic ? 0 : tick_of(most_x, 8);
  for (double x = logarithmic ? least_x : 0; x <= most_x * 1.0001; x = logarithmic ? x * 10 : x + step) {
    svg.line(at_x(x), frame.y, at_x(x), frame.y + frame.height);
    svg.text(at_x(x), frame.y + frame.height + 16, number(x), "middle");
  }
  svg.text(frame.x + frame.width, frame.y + frame.height + 32, x_name, "end");
  for (size_t i = 0; i < curves.size(); ++i) {
    std::vector<std::pair<double, double>> points;
    for (const auto& [x, y] : curves[i].points) points.emplace_back(at_x(x), at_y(y));
    svg.curve(points, i, curves[i].name);
  }
}

/// Width of a picture with a legend right of the frame.
double width_with(const std::vector<std::string>& names) {
  double width = 960;
  for (const std::string& name : names) width = std::max(width, 760 + 7.5 * static_cast<double>(name.size()));
  return width;
}

struct CompletionTimes {
  std::string name;
  std::vector<double> minutes;  ///< from arrival to end
};

std::string completion_chart(std::vector<CompletionTimes> all) {
  std::vector<Curve> curves;
  std::vector<std::string> names;
  for (auto& [name, minutes] : all) {
    std::sort(minutes.begin(), minutes.end());
    Curve& curve = curves.emplace_back(Curve{name, {}});
    names.push_back(name);
    constexpr size_t points = 200;
    for (size_t i = 0; i <= points && !minutes.empty(); ++i) {
      const size_t place = std::min(minutes.size() - 1, i * minutes.size() / points);
      curve.points.emplace_back(minutes[place], static_cast<double>(place + 1) / static_cast<double>(minutes.size()));
    }
  }
  const double legend = 20 + 18 * static_cast<double>(curves.size());
  Svg svg(width_with(names), std::max(350.0, 60 + legend));
  draw(svg, {}, curves, true, 1, "Share of jobs that have ended within a time", "minutes from arrival to end");
  svg.legend(710, 50, names);
  return svg.finish();
}

struct Panel {
  const char* title;
  std::vector<Curve> curves;  ///< over minutes
};

/// One panel above the other, each with the same curves.
std::string over_time(const std::array<Panel, 3>& panels) {
  std::vector<std::string> names;
  for (const Curve& each : panels.front().curves) names.push_back(each.name);
  Svg svg(width_with(names), std::max(3 * 230 + 20.0, 70 + 18 * static_cast<double>(names.size())));
  for (size_t p = 0; p < panels.size(); ++p) {
    double most = 0;
    for (const Curve& curve : panels[p].curves) {
      for (const auto& [minutes, value] : curve.points) most = std::max(most, value);
    }
    if (most == 0) most = 1;
    draw(svg, {.y = 40 + 230 * static_cast<double>(p), .height = 150}, panels[p].curves, false, most * 1.05, panels[p].title, "minutes");
  }
  svg.legend(710, 50, names);
  return svg.finish();
}

/// Of changes at moments, what they add up to by then.
std::map<double, double> running_sums(const std::map<double, double>& changes) {
  std::map<double, double> sums;
  double sum = 0;
  for (const auto& [moment, change] : changes) sums[moment] = sum += change;
  return sums;
}

/// 0 at first; each value from its moment, in seconds, to the next one.
Curve steps(const std::string& name, const std::map<double, double>& values) {
  Curve curve{name, {{0, 0}}};
  for (const auto& [moment, value] : values) {
    curve.points.emplace_back(moment / 60, curve.points.back().second);
    curve.points.emplace_back(moment / 60, value);
  }
  return curve;
}

struct BarPanel {
  std::string title;
  std::function<double(const TraceSummary&)> value;
};

/// One panel beside the other, a bar in each per summary.
std::string bars(std::span<const TraceSummary> summaries, const std::vector<BarPanel>& panels) {
  constexpr double row = 22, top = 46, letter = 7.5;
  double names_width = 100, panel_width = 260;
  for (const TraceSummary& each : summaries) {
    names_width = std::max(names_width, 30 + letter * static_cast<double>(each.policy.size() + each.sharing.size()));
  }
  for (const BarPanel& panel : panels) panel_width = std::max(panel_width, 20 + 8.5 * static_cast<double>(panel.title.size()));
  Svg svg(names_width + static_cast<double>(panels.size()) * panel_width, top + row * static_cast<double>(summaries.size()) + 20);
  for (size_t i = 0; i < summaries.size(); ++i) {
    svg.text(names_width - 10, top + row * static_cast<double>(i) + 15, summaries[i].policy + ", " + summaries[i].sharing, "end");
  }
  for (size_t p = 0; p < panels.size(); ++p) {
    const double x = names_width + panel_width * static_cast<double>(p);
    double most = 0;
    for (const TraceSummary& each : summaries) most = std::max(most, panels[p].value(each));
    svg.text(x, top - 16, panels[p].title, "start", 14);
    for (size_t i = 0; i < summaries.size(); ++i) {
      const double value = panels[p].value(summaries[i]);
      const double width = most > 0 ? (panel_width - 80) * value / most : 0;
      const double y = top + row * static_cast<double>(i);
      svg.bar(x, y + 3, std::max(width, 0.5), row - 6, p, fmt::format("{}, {}: {}", summaries[i].policy, summaries[i].sharing, number(value)));
      svg.text(x + width + 6, y + 15, number(value));
    }
  }
  return svg.finish();
}

}  // namespace

std::string completion_chart(std::span<const ChartedTrace> traces) {
  std::vector<CompletionTimes> all;
  for (const ChartedTrace& each : traces) {
    CompletionTimes& own = all.emplace_back(CompletionTimes{each.name, {}});
    for (size_t j = 0; j < each.trace->jobs.size(); ++j) {
      const JobOutcome& outcome = each.simulation->jobs[j];
      if (outcome.finished()) own.minutes.push_back((outcome.finished_s - each.trace->jobs[j].arrival_s) / 60);
    }
  }
  return completion_chart(std::move(all));
}

std::string completion_chart(std::span<const ReplannedTrace> results, const Trace& trace) {
  std::vector<CompletionTimes> all;
  for (const ReplannedTrace& each : results) {
    CompletionTimes& own = all.emplace_back(CompletionTimes{std::string(name_of(each.rule)), {}});
    for (size_t j = 0; j < each.jobs.size(); ++j) {
      if (std::isfinite(each.jobs[j].finished_s)) own.minutes.push_back((each.jobs[j].finished_s - trace.jobs[j].arrival_s) / 60);
    }
  }
  return completion_chart(std::move(all));
}

std::string timeline_chart(std::span<const ChartedTrace> traces) {
  const auto panel = [&](const char* title, auto value) {
    Panel own{title, {}};
    for (const ChartedTrace& each : traces) {
      Curve& curve = own.curves.emplace_back(Curve{each.name, {}});
      for (const ClusterSample& at : each.simulation->timeline) curve.points.emplace_back(at.time_s / 60, static_cast<double>(value(at)));
    }
    return own;
  };
  return over_time({panel("Running jobs", [](const ClusterSample& at) { return at.running_jobs; }),
                    panel("Waiting jobs", [](const ClusterSample& at) { return at.waiting_jobs; }),
                    panel("Busy instances", [](const ClusterSample& at) { return at.busy_instances; })});
}

std::string timeline_chart(std::span<const ReplannedTrace> results, const Trace& trace) {
  std::array<Panel, 3> panels{{{"Training jobs", {}}, {"Waiting jobs", {}}, {"Seconds of a step", {}}}};
  for (const ReplannedTrace& each : results) {
    std::map<double, double> training, waiting, seconds;  // by moment: by how many more, or how long from then on
    for (size_t j = 0; j < each.jobs.size(); ++j) {
      const ReplannedJob& job = each.jobs[j];
      if (job.steps == 0) continue;  // refused as it came
      ++waiting[trace.jobs[j].arrival_s], --waiting[job.started_s];
      ++training[job.started_s], --training[job.finished_s];
    }
    const std::string name(name_of(each.rule));
    panels[0].curves.push_back(steps(name, running_sums(training)));
    panels[1].curves.push_back(steps(name, running_sums(waiting)));
    for (const auto& [moment, jobs] : running_sums(training)) {
      if (jobs == 0) seconds[moment] = 0;
    }
    for (const ReplanEvent& event : each.events) seconds[event.time_s] = event.moves() || event.kept_s == 0 ? event.best_s : event.kept_s;
    panels[2].curves.push_back(steps(name, seconds));
  }
  return over_time(panels);
}

std::string summary_chart(std::span<const TraceSummary> summaries) {
  return bars(summaries, {{"tokens/s", [](const TraceSummary& each) { return each.tokens_per_s; }},
                          {"mean minutes to completion", [](const TraceSummary& each) { return each.completion_min.mean; }},
                          {"mean minutes waiting", [](const TraceSummary& each) { return each.waiting_min.mean; }}});
}

std::string tenant_chart(std::span<const TraceSummary> summaries) {
  constexpr size_t most = 8;
  std::vector<BarPanel> panels;
  for (size_t k = 0; !summaries.empty() && k < std::min(most, summaries.front().tenants.size()); ++k) {
    panels.push_back(
        {summaries.front().tenants[k].name + ": time over time alone", [k](const TraceSummary& each) { return each.tenants[k].slowdown; }});
  }
  return bars(summaries, panels);
}

}  // namespace cotune
