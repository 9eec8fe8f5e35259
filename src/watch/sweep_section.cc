#include "watch/sweep_section.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <set>

#include "base/xml_text.h"
#include "watch/line_chart.h"

namespace cotune {
namespace {

struct Candidate {
  const LoggedJob* job = nullptr;
  size_t colour = 0;  ///< of its job in the rest of the page: its position in the run
  bool is_ranked() const { return job->adapter_step.has_value() && !std::isnan(job->result_loss); }
};

struct LoggedSweep {
  std::string name;
  SweepMetric metric = SweepMetric::eval_loss;
  std::vector<std::string> options;  ///< that differ
  std::vector<Candidate> candidates; ///< best first
};

constexpr size_t plain_curves = 6;       // the others are faint
constexpr size_t most_named_values = 8;  // on an axis of numbers; of more it has round ones

/// What candidates are compared by, in charts.
struct ChartedMetric {
  const char* name;
  double (*of)(double loss, double accuracy);
};

ChartedMetric charted(SweepMetric metric) {
  if (metric == SweepMetric::eval_accuracy) return {"held-out rows right, in %,", [](double, double accuracy) { return 100 * accuracy; }};
  return {"held-out loss", [](double loss, double) { return loss; }};
}

std::string value_of(const Candidate& candidate, const std::string& option) {
  for (const auto& [path, value] : candidate.job->spec.sweep.values) {
    if (path == option) return value;
  }
  return "";
}

bool is_better(SweepMetric metric, const Candidate& a, const Candidate& b) {
  if (a.is_ranked() != b.is_ranked()) return a.is_ranked();
  const auto key = [metric](const Candidate& candidate) {
    const LoggedJob& job = *candidate.job;
    const double loss = std::isnan(job.result_loss) ? std::numeric_limits<double>::infinity() : job.result_loss;
    const double accuracy = std::isnan(job.result_accuracy) ? 0 : job.result_accuracy;
    return std::pair(metric == SweepMetric::eval_loss ? 0 : -accuracy, loss);
  };
  return key(a) < key(b);
}

bool is_best(const LoggedSweep& sweep, size_t i) { return i == 0 && sweep.candidates[i].is_ranked(); }

std::vector<LoggedSweep> sweeps_of(const RunLog& log) {
  std::vector<LoggedSweep> sweeps;
  for (size_t i = 0; i < log.jobs.size(); ++i) {
    const LoggedJob& job = log.jobs[i];
    const SweepSpec& spec = job.spec.sweep;
    if (spec.of.empty()) continue;
    auto own = std::find_if(sweeps.begin(), sweeps.end(), [&](const LoggedSweep& sweep) { return sweep.name == spec.of; });
    if (own == sweeps.end()) own = sweeps.insert(own, {.name = spec.of, .metric = spec.metric});
    own->candidates.push_back({&job, i});
    for (const auto& [option, value] : spec.values) {
      if (!std::count(own->options.begin(), own->options.end(), option)) own->options.push_back(option);
    }
  }
  for (LoggedSweep& sweep : sweeps) {
    std::stable_sort(sweep.candidates.begin(), sweep.candidates.end(),
                     [&](const Candidate& a, const Candidate& b) { return is_better(sweep.metric, a, b); });
    std::erase_if(sweep.options, [&](const std::string& option) {
      std::set<std::string> values;
      for (const Candidate& candidate : sweep.candidates) values.insert(value_of(candidate, option));
      return values.size() < 2;
    });
  }
  return sweeps;
}

std::string table(const LoggedSweep& sweep) {
  std::string html = "<div class=\"card wide\"><table>\n<tr><th>candidate</th>";
  for (const std::string& option : sweep.options) html += fmt::format("<th class=\"n\">{}</th>", xml_text(option.substr(option.rfind('.') + 1)));
  html += "<th class=\"n\">held-out loss</th><th class=\"n\">rows right</th><th class=\"n\">steps</th><th>state</th></tr>\n";
  for (size_t i = 0; i < sweep.candidates.size(); ++i) {
    const Candidate& candidate = sweep.candidates[i];
    const LoggedJob& job = *candidate.job;
    html += fmt::format("<tr><td class=\"name\">{}{}{}{}</td>", swatch(candidate.colour, i >= plain_curves), is_best(sweep, i) ? "<b>" : "",
                        xml_text(job.spec.name), is_best(sweep, i) ? "</b>, best" : "");
    for (const std::string& option : sweep.options) html += fmt::format("<td class=\"n\">{}</td>", xml_text(value_of(candidate, option)));
    html += fmt::format("<td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"why\">{}{}</td></tr>\n",
                        std::isnan(job.result_loss) ? "" : fmt::format("{:.4f}", job.result_loss),
                        std::isnan(job.result_accuracy) ? "" : fmt::format("{:.1f}%", 100 * job.result_accuracy), job.step,
                        xml_text(job.status == "stopped_early" ? "stopped early" : job.status),
                        job.reason.empty() ? "" : ": " + xml_text(job.reason));
  }
  return html + "</table></div>\n";
}

std::string curves(const LoggedSweep& sweep) {
  const ChartedMetric metric = charted(sweep.metric);
  LineChart chart{.title = fmt::format("{} of each candidate", metric.name), .x_name = "step", .with_legend = true};
  for (size_t i = 0; i < sweep.candidates.size(); ++i) {
    const LoggedJob& job = *sweep.candidates[i].job;
    Curve curve{.name = job.spec.name, .colour = sweep.candidates[i].colour, .with_marks = true, .faint = i >= plain_curves};
    for (const LoggedEvaluation& evaluation : job.evaluations) {
      curve.points.push_back({static_cast<double>(evaluation.step), metric.of(evaluation.loss, evaluation.accuracy)});
    }
    chart.curves.push_back(std::move(curve));
  }
  return "<div class=\"card\">" + to_svg(chart) + "</div>\n";
}

std::optional<double> as_number(const std::string& text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return number;
}

/// The metric over an option's values: numbers where they stand, in the logarithm where they span decades; else by position.
std::string metric_over(const LoggedSweep& sweep, const std::string& option) {
  std::vector<std::string> values;
  for (const Candidate& candidate : sweep.candidates) {
    const std::string value = value_of(candidate, option);
    if (!std::count(values.begin(), values.end(), value)) values.push_back(value);
  }
  std::sort(values.begin(), values.end());
  const bool are_numbers = std::all_of(values.begin(), values.end(), [](const std::string& value) { return as_number(value).has_value(); });
  double low = std::numeric_limits<double>::infinity(), high = 0;
  for (const std::string& value : values) {
    low = std::min(low, as_number(value).value_or(0));
    high = std::max(high, as_number(value).value_or(0));
  }
  const bool is_log = are_numbers && low > 0 && high / low >= 10;
  std::string x_name = option;
  if (!are_numbers) {
    x_name += ":";
    for (size_t i = 0; i < values.size(); ++i) x_name += fmt::format(" {} = {}", i + 1, values[i].empty() ? "unset" : values[i].substr(0, 24));
  }
  const ChartedMetric metric = charted(sweep.metric);
  LineChart chart{.title = fmt::format("{} over {}", metric.name, option),
                  .x_name = std::move(x_name),
                  .x_scale = is_log ? Scale::powers : Scale::plain};
  std::set<double> tried;
  for (size_t i = 0; i < sweep.candidates.size(); ++i) {
    const Candidate& candidate = sweep.candidates[i];
    const std::string value = value_of(candidate, option);
    const auto position = static_cast<double>(std::find(values.begin(), values.end(), value) - values.begin() + 1);
    const double x = !are_numbers ? position : is_log ? std::log10(*as_number(value)) : *as_number(value);
    chart.curves.push_back({.name = candidate.job->spec.name,
                            .colour = candidate.colour,
                            .with_marks = true,
                            .hollow = !is_best(sweep, i),
                            .faint = i >= plain_curves,
                            .points = {{x, metric.of(candidate.job->result_loss, candidate.job->result_accuracy)}}});
    tried.insert(x);
  }
  if (!are_numbers || tried.size() <= most_named_values) chart.x_ticks.assign(tried.begin(), tried.end());
  return "<div class=\"card\">" + to_svg(chart) + "</div>\n";
}

}  // namespace

std::string sweep_sections(const RunLog& log) {
  std::string html;
  for (const LoggedSweep& sweep : sweeps_of(log)) {
    html +=
        fmt::format("<h2>Sweep {}</h2>\n{}<div class=\"charts\" style=\"margin-top:12px\">\n{}", xml_text(sweep.name), table(sweep), curves(sweep));
    for (const std::string& option : sweep.options) html += metric_over(sweep, option);
    html += "</div>\n";
  }
  return html;
}

}  // namespace cotune
