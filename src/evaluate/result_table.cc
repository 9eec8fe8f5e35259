#include "evaluate/result_table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/counted.h"

namespace cotune {
namespace {

std::string number(double value, const MetricValue& metric, bool with_sign) {
  if (metric.is_share) return with_sign ? fmt::format("{:+.1f}", 100 * value) : fmt::format("{:.1f}%", 100 * value);
  return with_sign ? fmt::format("{:+.4f}", value) : fmt::format("{:.4f}", value);
}

std::string estimate_text(const Estimate& estimate, const MetricValue& metric, bool with_sign, bool unicode) {
  if (std::isnan(estimate.value)) return with_sign ? "" : "not finite";
  std::string text = number(estimate.value, metric, with_sign);
  if (std::isnan(estimate.standard_error)) return text;
  const double scale = metric.is_share ? 100 : 1;
  return text + fmt::format(" {} {:.{}f}", unicode ? "±" : "+-", scale * estimate.standard_error, metric.is_share ? 1 : 4);
}

nlohmann::ordered_json finite(double value) { return std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json(); }

size_t characters_of(const std::string& utf8) {
  return static_cast<size_t>(std::ranges::count_if(utf8, [](char byte) { return (byte & 0xc0) != 0x80; }));
}

std::string heading(const EvaluationResult& result) {
  const std::string tokens = result.tokens > 0 ? ", " + counted(result.tokens, "learned token") : "";
  return fmt::format("{}: {}{}\n", result.data, counted(result.examples, "example"), tokens);
}

std::string change_title(const EvaluationResult& result) {
  return result.adapters.size() > 1 ? "change from " + result.adapters.front().adapter : "";
}

std::vector<std::string> table_rows(const EvaluationResult& result, bool unicode) {
  size_t metric_width = 6, adapter_width = 7, value_width = 5;
  for (const AdapterResult& adapter : result.adapters) {
    adapter_width = std::max(adapter_width, adapter.adapter.size());
    for (const MetricValue& metric : adapter.metrics) {
      metric_width = std::max(metric_width, metric.name.size());
      value_width = std::max(value_width, estimate_text(metric.value, metric, false, false).size());
    }
  }
  // `±` is one character of two bytes, and `+-` two.
  const auto row = [&](std::string_view metric, std::string_view adapter, const std::string& value, const std::string& change) {
    std::string text = fmt::format("{:<{}}  {:<{}}  {:<{}}  {}", metric, metric_width, adapter, adapter_width, value, value_width, change);
    return text.erase(text.find_last_not_of(' ') + 1);
  };
  std::vector<std::string> rows = {row("metric", "adapter", "value", change_title(result))};
  for (size_t i = 0; !result.adapters.empty() && i < result.adapters.front().metrics.size(); ++i) {
    for (size_t k = 0; k < result.adapters.size(); ++k) {
      const MetricValue& metric = result.adapters[k].metrics[i];
      rows.push_back(row(k == 0 ? metric.name : "", result.adapters[k].adapter, estimate_text(metric.value, metric, false, unicode),
                         estimate_text(metric.change, metric, true, unicode)));
    }
  }
  return rows;
}

/// A line each of the metric, the adapter, its value, and, in parentheses, the change.
std::vector<std::string> list_rows(const EvaluationResult& result, bool unicode) {
  std::vector<std::string> rows;
  for (size_t i = 0; !result.adapters.empty() && i < result.adapters.front().metrics.size(); ++i) {
    rows.push_back(result.adapters.front().metrics[i].name);
    for (const AdapterResult& adapter : result.adapters) {
      const MetricValue& metric = adapter.metrics[i];
      const std::string change = estimate_text(metric.change, metric, true, unicode);
      rows.push_back("  " + adapter.adapter);
      rows.push_back("    " + estimate_text(metric.value, metric, false, unicode) + (change.empty() ? "" : " (" + change + ")"));
    }
  }
  if (const std::string title = change_title(result); !title.empty()) rows.push_back("(" + title + ")");
  return rows;
}

}  // namespace

std::string result_table(const EvaluationResult& result, bool unicode, size_t columns) {
  std::vector<std::string> rows = table_rows(result, unicode);
  const bool fits = std::ranges::all_of(rows, [&](const std::string& row) { return characters_of(row) <= columns; });
  if (!fits) rows = list_rows(result, unicode);
  return heading(result) + fmt::format("{}\n", fmt::join(rows, "\n"));
}

std::vector<nlohmann::ordered_json> result_lines(const EvaluationResult& result) {
  std::vector<nlohmann::ordered_json> lines;
  for (const AdapterResult& adapter : result.adapters) {
    nlohmann::ordered_json& line = lines.emplace_back();
    line["data"] = result.data;
    line["adapter"] = adapter.adapter;
    line["examples"] = result.examples;
    if (result.tokens > 0) line["tokens"] = result.tokens;
    for (const MetricValue& metric : adapter.metrics) {
      line[metric.name] = finite(metric.value.value);
      line[metric.name + "_stderr"] = finite(metric.value.standard_error);
      if (std::isnan(metric.change.value)) continue;
      line[metric.name + "_change"] = finite(metric.change.value);
      line[metric.name + "_change_stderr"] = finite(metric.change.standard_error);
    }
  }
  return lines;
}

}  // namespace cotune
