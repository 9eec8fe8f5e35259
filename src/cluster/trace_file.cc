#include "cluster/trace_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>
#include <unordered_map>

#include "base/diagnostics.h"
#include "base/error.h"
#include "base/file.h"
#include "base/record_mistakes.h"
#include "base/utf8.h"
#include "jobs/adapter_methods.h"
#include "jobs/enum_names.h"

namespace cotune {
namespace {

constexpr std::array<std::string_view, 12> columns = {"arrival_min", "duration_min", "job",    "tenant", "priority",    "deadline_min",
                                                      "rows",        "tokens",       "method", "width",  "stops_after", "dedicated"};

/// Fields of a line; nothing where a quote is not closed.
std::optional<std::vector<std::string>> split(std::string_view line) {
  std::vector<std::string> fields(1);
  bool quoted = false;
  for (size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (quoted && c == '"' && i + 1 < line.size() && line[i + 1] == '"') {
      fields.back() += c;
      ++i;
    } else if (c == '"') {
      quoted = !quoted;
    } else if (c == ',' && !quoted) {
      fields.emplace_back();
    } else {
      fields.back() += c;
    }
  }
  if (quoted) return std::nullopt;
  for (std::string& field : fields) {
    field.erase(0, std::min(field.find_first_not_of(" \t"), field.size()));
    field.erase(field.find_last_not_of(" \t") + 1);
  }
  return fields;
}

std::string quoted(const std::string& field) {
  if (field.find_first_of(",\"# \t") == std::string::npos && !field.empty()) return field;
  std::string text = "\"";
  for (const char c : field) {
    text += c;
    if (c == '"') text += c;
  }
  return text + "\"";
}

class TraceReader {
 public:
  explicit TraceReader(const std::string& file_name) : file_(file_name) {}

  TraceFile read(std::string_view text) {
    for (size_t begin = 0; begin < text.size();) {
      size_t end = text.find('\n', begin);
      if (end == std::string_view::npos) end = text.size();
      std::string_view line = text.substr(begin, end - begin);
      if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
      if (line_ == 0 && line.starts_with(byte_order_mark)) line.remove_prefix(byte_order_mark.size());
      begin = end + 1;
      ++line_;
      if (line.empty() || line.front() == '#') continue;
      const auto fields = split(line);
      if (!fields) {
        mistakes_.add(line_, "", "a double quote is not closed");
      } else if (header_.empty()) {
        read_header(*fields);
      } else {
        read_job(*fields);
      }
    }
    if (header_.empty() && diagnostics_.empty()) {
      mistakes_.add(line_, "", fmt::format("no line names the columns; accepted are {}", fmt::join(columns, ", ")));
    } else if (jobs_.empty() && diagnostics_.empty()) {
      mistakes_.add(line_, "", "there is no job below the line that names the columns");
    }
    mistakes_.finish();
    diagnostics_.throw_if_any();
    return finish();
  }

 private:
  void read_header(const std::vector<std::string>& fields) {
    header_ = fields;
    for (size_t i = 0; i < fields.size(); ++i) {
      const bool known = std::count(columns.begin(), columns.end(), fields[i]) > 0;
      if (!known) {
        result_.ignored_columns.push_back(fields[i]);
      } else if (!place_.emplace(fields[i], i).second) {
        mistakes_.add(line_, fields[i], "the column is there twice");
      }
    }
    for (const char* required : {"arrival_min", "duration_min"}) {
      if (place_.count(required) > 0) continue;
      const std::string near = nearest_name(required, result_.ignored_columns);
      mistakes_.add(line_, required,
                    near.empty() ? "the column is missing" : fmt::format("the column is missing; is it `{}`?", near));
    }
  }

  void read_job(const std::vector<std::string>& fields) {
    if (fields.size() != header_.size()) {
      mistakes_.add(line_, "", fmt::format("has {} fields where the first line names {}", fields.size(), header_.size()));
      return;
    }
    fields_ = &fields;
    TraceJob job;
    constexpr double most_minutes = 1e9;
    job.name = name();
    job.arrival_s = 60 * number("arrival_min", std::nullopt, 0, most_minutes, "minutes, from 0 to 1000000000");
    job.duration_s = 60 * number("duration_min", std::nullopt, 1e-6, most_minutes, "minutes, from 0.000001 to 1000000000");
    const std::string deadline = text("deadline_min", "inf");
    if (deadline != "inf") {
      job.deadline_s =
          job.arrival_s + 60 * number("deadline_min", std::nullopt, 0, most_minutes, "minutes after the arrival, from 0 to 1000000000, or inf");
    }
    job.priority = whole("priority", 0, -1000000, 1000000);
    job.stops_after = number("stops_after", 1, 1e-9, 1, "a share from 0.000000001 to 1");
    job.dedicated = whole("dedicated", 0, 0, 1) == 1;
    JobKind kind{whole("rows", 8, 1, 65536), whole("tokens", 256, 1, 1048576), method(), whole("width", 16, 1, 4096)};
    if (selects_entries(kind.method)) kind.width = 0;
    const std::string tenant = text("tenant", "default");
    jobs_.push_back({job, kind, tenant, line_});
  }

  /// Of the job of this line; reports one that another line has.
  std::string name() {
    const std::string given = text("job", "");
    std::string name = given.empty() ? fmt::format("job{}", data_lines_) : given;
    ++data_lines_;
    const auto [first, is_new] = line_of_.emplace(name, line_);
    if (!is_new) {
      mistakes_.add(line_, "job", fmt::format("two jobs are named `{}`{}; the first is in line {}", name,
                                              given.empty() ? ", which a line without a name gets by its number" : "", first->second));
    }
    return name;
  }

  std::string text(const std::string& column, const std::string& fallback) const {
    const auto place = place_.find(column);
    if (place == place_.end() || (*fields_)[place->second].empty()) return fallback;
    return (*fields_)[place->second];
  }

  template <typename T>
  T parsed(const std::string& column, std::optional<T> fallback, T least, T most, std::string_view accepted) {
    const std::string found = text(column, "");
    if (found.empty() && fallback) return *fallback;
    T value{};
    const auto [end, error] = std::from_chars(found.data(), found.data() + found.size(), value);
    const bool good = error == std::errc() && end == found.data() + found.size() && least <= value && value <= most;
    if (good) return value;
    mistakes_.add(line_, column, fmt::format("must be {}, got `{}`", accepted, found));
    return least;
  }
  double number(const std::string& column, std::optional<double> fallback, double least, double most, std::string_view accepted) {
    return parsed(column, fallback, least, most, accepted);
  }
  int64_t whole(const std::string& column, int64_t fallback, int64_t least, int64_t most) {
    return parsed<int64_t>(column, fallback, least, most, fmt::format("a whole number from {} to {}", least, most));
  }

  AdapterMethod method() {
    const std::string found = text("method", "lora");
    const auto& names = enum_names<AdapterMethod>;
    const auto place = std::find(names.begin(), names.end(), found);
    if (place != names.end()) return static_cast<AdapterMethod>(place - names.begin());
    mistakes_.add(line_, "method",
                  fmt::format("must be {} or {}, got `{}`", fmt::join(names.begin(), names.end() - 1, ", "), names.back(), found));
    return AdapterMethod::lora;
  }

  TraceFile finish() {
    Trace& trace = result_.trace;
    std::stable_sort(jobs_.begin(), jobs_.end(), [](const Read& a, const Read& b) { return a.job.arrival_s < b.job.arrival_s; });
    for (const Read& each : jobs_) trace.kinds.push_back(each.kind);
    std::sort(trace.kinds.begin(), trace.kinds.end());
    trace.kinds.erase(std::unique(trace.kinds.begin(), trace.kinds.end()), trace.kinds.end());
    std::map<std::string, int32_t> tenants;
    for (Read& each : jobs_) {
      const auto [tenant, is_new] = tenants.emplace(each.tenant, static_cast<int32_t>(tenants.size()));
      if (is_new) trace.tenants.push_back(each.tenant);
      each.job.tenant = tenant->second;
      const auto place = std::lower_bound(trace.kinds.begin(), trace.kinds.end(), each.kind);
      each.job.kind = static_cast<int32_t>(place - trace.kinds.begin());
      trace.jobs.push_back(std::move(each.job));
      result_.lines.push_back(each.line);
    }
    return std::move(result_);
  }

  struct Read {
    TraceJob job;
    JobKind kind;
    std::string tenant;
    int line;
  };
  std::string file_;
  int line_ = 0;
  Diagnostics diagnostics_;
  RecordMistakes mistakes_{file_, diagnostics_};
  std::vector<std::string> header_;
  std::map<std::string, size_t> place_;  // of known columns
  const std::vector<std::string>* fields_ = nullptr;
  std::vector<Read> jobs_;
  int64_t data_lines_ = 0;                        // that have a name by now
  std::unordered_map<std::string, int> line_of_;  // the first of each name
  TraceFile result_;
};

}  // namespace

TraceFile parse_trace_file(std::string_view text, const std::string& file_name) { return TraceReader(file_name).read(text); }

TraceFile read_trace_file(const std::filesystem::path& path) { return parse_trace_file(read_file(path), path.string()); }

std::string to_csv(const Trace& trace) {
  std::string text = fmt::format("{}\n", fmt::join(columns, ","));
  for (const TraceJob& job : trace.jobs) {
    const JobKind& kind = trace.kinds[static_cast<size_t>(job.kind)];
    const std::string deadline = std::isinf(job.deadline_s) ? "" : fmt::format("{}", (job.deadline_s - job.arrival_s) / 60);
    text += fmt::format("{},{},{},{},{},{},{},{},{},{},{},{}\n", job.arrival_s / 60, job.duration_s / 60, quoted(job.name),
                        quoted(trace.tenants[static_cast<size_t>(job.tenant)]), job.priority, deadline, kind.rows, kind.tokens,
                        name_of(kind.method), selects_entries(kind.method) ? "" : fmt::format("{}", kind.width),
                        job.stops_after, job.dedicated ? 1 : 0);
  }
  return text;
}

}  // namespace cotune
