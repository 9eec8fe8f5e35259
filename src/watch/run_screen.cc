#include "watch/run_screen.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <string_view>

#include "base/counted.h"
#include "base/quantity_text.h"
#include "watch/footer_lines.h"
#include "watch/rank_text.h"
#include "watch/screen_text.h"

namespace cotune {
namespace {

enum class Colour { none, green, yellow, red, faint, bold, reversed };

std::string coloured(const std::string& text, Colour colour, const ScreenStyle& style) {
  if (!style.colour || colour == Colour::none) return text;
  constexpr const char* codes[] = {"0", "32", "33", "31", "2", "1", "7"};
  return fmt::format("\x1b[{}m{}\x1b[0m", codes[static_cast<size_t>(colour)], text);
}

Colour colour_of(const std::string& status) {
  if (status == "running" || status == "finished" || status == "stopped_early") return Colour::green;
  if (status == "failed" || status == "refused") return Colour::red;
  if (status == "waiting" || status == "paused" || status == "stopped") return Colour::yellow;
  return Colour::faint;
}

std::string printable_words(const std::string& status) { return status == "stopped_early" ? "stopped early" : printable(status); }

std::string number_or_nothing(double value, const char* format) {
  return std::isnan(value) ? "" : fmt::format(fmt::runtime(format), value);
}

std::string left_text(const JobReport& job) { return std::isnan(job.seconds_left) ? "" : duration_text(job.seconds_left); }

std::string step_text(const JobReport& job) {
  return job.steps > 0 ? fmt::format("{}/{}", job.step, job.steps) : fmt::format("{}", job.step);
}

/// One column of the table. rank: the higher, the sooner it is left out.
struct Column {
  std::string title;
  Align align;
  int rank;
  std::function<std::string(const JobView&)> text;
  size_t width = 0;
};

constexpr size_t least_name = 8, widest_name = 48, least_trend = 8, widest_trend = 24;
constexpr int name_rank = 0, state_rank = 1, trend_rank = 6;

std::vector<Column> all_columns(bool unicode) {
  return {{"job", Align::left, name_rank, [](const JobView& job) { return printable(job.report.name); }},
          {"state", Align::left, state_rank, [](const JobView& job) { return printable_words(job.report.status); }},
          {"step", Align::right, 2, [](const JobView& job) { return step_text(job.report); }},
          {"loss", Align::right, 3, [](const JobView& job) { return number_or_nothing(job.report.loss, "{:.4f}"); }},
          {"trend", Align::left, trend_rank, [unicode](const JobView& job) { return sparkline(job.losses, widest_trend, unicode); }},
          {"held out", Align::right, 8, [](const JobView& job) { return number_or_nothing(job.report.eval_loss, "{:.4f}"); }},
          {"lr", Align::right, 7, [](const JobView& job) { return number_or_nothing(job.learning_rate, "{:.2e}"); }},
          {"tok/s", Align::right, 5, [](const JobView& job) { return number_or_nothing(job.report.tokens_per_second, "{:.0f}"); }},
          {"left", Align::right, 4, [](const JobView& job) { return left_text(job.report); }}};
}

size_t total_width(const std::vector<Column>& columns) {
  size_t total = 2;
  for (const Column& column : columns) total += column.width;
  return total + 2 * (columns.size() - 1);
}

/// Those that fit, with their widths. Names keep what tells them apart until nothing but the state stands beside them.
std::vector<Column> columns_for(const RunView& view, const ScreenStyle& style) {
  std::vector<Column> columns = all_columns(style.unicode);
  for (Column& column : columns) {
    column.width = columns_of(column.title);
    bool is_empty = true;
    for (const JobView& job : view.jobs) {
      const size_t width = columns_of(column.text(job));
      is_empty = is_empty && width == 0;
      column.width = std::max(column.width, width);
    }
    if (is_empty && column.rank > state_rank) column.width = 0;
    if (column.rank == name_rank) column.width = std::min(column.width, widest_name);
    if (column.rank == trend_rank && column.width > 0) column.width = least_trend;
  }
  std::erase_if(columns, [](const Column& column) { return column.width == 0; });
  std::vector<std::string> names;
  for (const JobView& job : view.jobs) names.push_back(printable(job.report.name));
  const size_t distinct_name = distinct_width(names, least_name, widest_name, style.unicode);
  const auto of_rank = [&](int rank) {
    return std::find_if(columns.begin(), columns.end(), [rank](const Column& column) { return column.rank == rank; });
  };
  while (total_width(columns) > style.columns) {
    const auto name = of_rank(name_rank);
    const size_t over = total_width(columns) - style.columns;
    const size_t least = columns.size() > 2 ? distinct_name : least_name;
    const size_t spare = name->width > least ? name->width - least : 0;
    if (over <= spare || columns.size() == 1) {
      name->width -= std::min(over, name->width - 1);
      break;
    }
    columns.erase(std::max_element(columns.begin(), columns.end(), [](const Column& a, const Column& b) { return a.rank < b.rank; }));
  }
  if (const auto trend = of_rank(trend_rank); trend != columns.end() && total_width(columns) < style.columns) {
    size_t points = 0;
    for (const JobView& job : view.jobs) points = std::max(points, job.losses.size());
    const size_t wanted = std::clamp(points, least_trend, widest_trend);
    trend->width = std::min(wanted, trend->width + style.columns - total_width(columns));
  }
  return columns;
}

std::string cell(const Column& column, const JobView& job, const ScreenStyle& style) {
  if (column.rank == trend_rank)
    return in_columns(sparkline(job.losses, column.width, style.unicode), column.width, Align::left, style.unicode);
  const std::string text = column.rank == name_rank ? with_both_ends(column.text(job), column.width, style.unicode) : column.text(job);
  return in_columns(text, column.width, column.align, style.unicode);
}

std::string row(const std::vector<Column>& columns, const JobView& job, bool is_selected, const ScreenStyle& style) {
  std::string line = is_selected ? (style.unicode ? "▶ " : "> ") : "  ";
  for (size_t i = 0; i < columns.size(); ++i) {
    if (i > 0) line += "  ";
    const std::string text = cell(columns[i], job, style);
    const bool names = columns[i].rank == name_rank;
    line += coloured(text,
                     columns[i].rank == state_rank ? colour_of(job.report.status)
                     : names && is_selected        ? Colour::bold
                                                   : Colour::none,
                     style);
  }
  return line;
}

std::string title_row(const std::vector<Column>& columns, const ScreenStyle& style) {
  std::string line = "  ";
  for (size_t i = 0; i < columns.size(); ++i) {
    if (i > 0) line += "  ";
    line += in_columns(columns[i].title, columns[i].width, columns[i].align, style.unicode);
  }
  return coloured(line, Colour::faint, style);
}

std::string separator(const ScreenStyle& style) { return style.unicode ? " · " : " | "; }

/// The first of the parts, and those of the others that fit.
std::string joined(const std::vector<std::string>& parts, const ScreenStyle& style) {
  const std::string between = separator(style);
  std::string line;
  for (const std::string& part : parts) {
    if (part.empty()) continue;
    const std::string longer = line.empty() ? part : line + between + part;
    if (!line.empty() && columns_of(longer) > style.columns) continue;
    line = longer;
  }
  return line;
}

/// Whether the run is emulated and what it is at, which every window shows, and what can be done about it.
std::string title(const RunReport& run, const ScreenStyle& style) {
  const std::string name = run.emulated ? fmt::format("cotune{}emulated", separator(style)) : "cotune";
  const std::string phase = name + separator(style) + phase_text(run.phase, run.emulated);
  const std::string resume = can_be_resumed(run) ? "; --resume goes on with it" : "";
  return columns_of(phase + resume) <= style.columns ? phase + resume : phase;
}

/// Of as many parts of the numbers as fit: used, of how many, and the peak.
std::string memory_line(const MemoryView& memory, const ScreenStyle& style) {
  const std::string device = memory.device == "cpu" ? "memory" : printable(memory.device) + " memory";
  ScreenStyle beside = style;
  beside.columns -= std::min(style.columns, columns_of(device) + 1);
  const int64_t shown_bytes = memory.used_bytes > 0 ? memory.used_bytes : memory.peak_bytes;
  const std::string shown = memory.used_bytes > 0 ? bytes_text(shown_bytes) : "peak " + bytes_text(shown_bytes);
  const std::string of_limit = memory.limit_bytes > 0 ? shown + " of " + bytes_text(memory.limit_bytes) : shown;
  const std::string peak = memory.used_bytes > 0 && memory.peak_bytes > 0 ? "peak " + bytes_text(memory.peak_bytes) : "";
  std::string line = joined({columns_of(of_limit) <= beside.columns ? of_limit : shown, peak}, beside);
  constexpr size_t narrowest_bar = 8, widest_bar = 24;
  if (memory.limit_bytes > 0 && columns_of(line) + 1 + narrowest_bar <= beside.columns) {
    const double share = static_cast<double>(shown_bytes) / static_cast<double>(memory.limit_bytes);
    line = bar(share, std::min(widest_bar, beside.columns - columns_of(line) - 1), style.unicode) + " " + line;
  }
  return device + " " + line;
}

/// `3 running, 2 waiting`.
std::string counts_text(const std::map<std::string, int64_t>& jobs) {
  std::string counts;
  for (const char* status : {"running", "waiting", "paused", "stopped", "finished", "stopped_early", "cancelled", "failed", "refused"}) {
    const auto found = jobs.find(status);
    if (found != jobs.end() && found->second > 0) {
      counts += fmt::format("{}{} {}", counts.empty() ? "" : ", ", found->second, printable_words(status));
    }
  }
  return counts;
}

bool is_ahead(const JobReport& a, const JobReport& b) {
  if (a.by_accuracy && a.result_accuracy != b.result_accuracy) return a.result_accuracy > b.result_accuracy;
  return a.result_loss < b.result_loss;
}

std::string best_text(const JobReport& best, const ScreenStyle& style) {
  const std::string value =
      best.by_accuracy ? fmt::format("most right {:.1f}%", 100 * best.result_accuracy) : fmt::format("least held out {:.4f}", best.result_loss);
  return fmt::format("{}: {}", value, with_both_ends(printable(best.name), std::max<size_t>(12, style.columns / 3), style.unicode));
}

/// Of each sweep, how far its candidates are and which of those that can still win stands best, as the sweep compares them. In a window they take a
/// sixth of its rows at most.
std::vector<std::string> sweep_lines(const RunView& view, const ScreenStyle& style) {
  struct Sweep {
    std::map<std::string, int64_t> jobs;
    const JobReport* best = nullptr;
  };
  std::map<std::string, Sweep> sweeps;
  for (const JobView& job : view.jobs) {
    if (job.report.sweep.empty()) continue;
    Sweep& sweep = sweeps[job.report.sweep];
    ++sweep.jobs[job.report.status];
    const bool is_out = job.report.status == "cancelled" || job.report.status == "failed" || job.report.status == "refused";
    if (is_out || std::isnan(job.report.result_loss)) continue;
    if (sweep.best == nullptr || is_ahead(job.report, *sweep.best)) sweep.best = &job.report;
  }
  std::vector<std::string> lines;
  for (const auto& [name, sweep] : sweeps) {
    const std::string title = "sweep " + with_both_ends(printable(name), std::max<size_t>(12, style.columns / 4), style.unicode);
    lines.push_back(joined({title, sweep.best == nullptr ? "" : best_text(*sweep.best, style), counts_text(sweep.jobs)}, style));
  }
  const size_t most = style.rows / 6;
  if (style.rows > 0 && lines.size() > most) lines.resize(most);
  return lines;
}

std::vector<std::string> head(const RunView& view, const ScreenStyle& style) {
  const RunReport& run = view.run;
  const std::string counts = counts_text(run.jobs);
  int64_t step = 0, steps = 0;
  for (const JobView& job : view.jobs) {
    step += job.report.step;
    const std::string& status = job.report.status;
    const bool goes_on = status == "running" || status == "waiting" || status == "paused" || status == "stopped";
    steps += goes_on ? job.report.steps : job.report.step;
  }
  std::vector<std::string> lines;
  const auto waiting = run.jobs.find("waiting"), paused = run.jobs.find("paused");
  const bool others_wait = waiting != run.jobs.end() || paused != run.jobs.end();
  const std::string rounds = run.rounds > 0 ? fmt::format("{} in {}", counted(run.rounds, "round"), duration_text(run.seconds)) : "";
  lines.push_back(joined({title(run, style), rounds, printable(run.folder)}, style));
  lines.push_back(
      joined({!counts.empty()          ? counts
              : run.phase == "loading" ? ""
                                       : "no jobs",
              steps > 0 ? fmt::format("{} of {}", step, counted(steps, "step")) : "", number_or_nothing(view.tokens_per_second, "{:.0f} tok/s"),
              std::isnan(view.seconds_left) ? "" : duration_text(view.seconds_left) + (others_wait ? " left of those that run" : " left")},
             style));
  if (lines.back().empty()) lines.pop_back();
  if (view.memory.used_bytes > 0 || view.memory.peak_bytes > 0) lines.push_back(memory_line(view.memory, style));
  if (!view.ranks.empty()) lines.push_back(rank_line(view.ranks, style.columns));
  const std::vector<std::string> sweeps = sweep_lines(view, style);
  lines.insert(lines.end(), sweeps.begin(), sweeps.end());
  for (std::string& line : lines) {
    if (columns_of(line) > style.columns) line = in_columns(line, style.columns, Align::left, style.unicode);
  }
  if (!lines.empty()) lines.front() = coloured(lines.front(), Colour::bold, style);
  return lines;
}

/// Why jobs wait, or have failed.
std::vector<std::string> reasons(const RunView& view, const ScreenStyle& style) {
  std::vector<std::string> lines;
  std::map<std::pair<std::string, std::string>, int64_t> alike;  // by status and reason
  for (const JobView& job : view.jobs) ++alike[{job.report.status, job.report.reason}];
  for (const JobView& job : view.jobs) {
    if (job.report.reason.empty()) continue;
    int64_t& count = alike[{job.report.status, job.report.reason}];
    if (count == 0) continue;  // told already
    const bool waits = job.report.status == "waiting";
    const std::string who = count == 1 ? printable(job.report.name) + (waits ? " waits" : "")
                                       : fmt::format("{} jobs{}", count, waits ? " wait" : ", " + printable_words(job.report.status));
    count = 0;
    const std::string text = who + ": " + printable(job.report.reason);
    constexpr size_t most = 3;  // in 40 columns one for memory takes as many
    for (const std::string& line : style.rows > 0 ? wrapped(text, style.columns, most, style.unicode) : wrapped(text, style.columns))
      lines.push_back(coloured(line, colour_of(job.report.status), style));
  }
  return lines;
}

/// The jobs from..to that are shown, around the selected one.
std::pair<size_t, size_t> shown_jobs(const RunView& view, const std::string& selected, size_t room) {
  const size_t count = view.jobs.size();
  if (count <= room) return {0, count};
  const auto found = std::find_if(view.jobs.begin(), view.jobs.end(), [&](const JobView& job) { return job.report.name == selected; });
  const auto place = static_cast<size_t>(found == view.jobs.end() ? 0 : found - view.jobs.begin());
  const size_t first = std::min(place > room / 2 ? place - room / 2 : 0, count - room);
  return {first, first + room};
}

std::string fitted(const std::string& text, const ScreenStyle& style) {
  const std::string line = printable(text);
  return columns_of(line) > style.columns ? in_columns(line, style.columns, Align::left, style.unicode) : line;
}

/// A fifth of the window at most, or what the lines above it leave, which else would hold events.
std::vector<std::string> footer_of(const ScreenState& state, const ScreenStyle& style, size_t lines_above) {
  std::vector<std::string> parts;
  for (const std::string& part : state.footer) parts.push_back(printable(part));
  constexpr size_t most = 4;
  const size_t left = style.rows > lines_above ? style.rows - lines_above : 0;
  const size_t share = std::clamp<size_t>(std::max(style.rows / 5, left), 1, most);
  return footer_lines(parts, style.columns, style.rows > 0 ? share : most, style.unicode);
}

}  // namespace

std::string phase_text(const std::string& phase, bool emulated) {
  if (phase == "interrupted") return emulated ? "stopped" : "stopped and saved";
  if (phase == "killed") return "not running, and it did not end";
  if (phase == "unresponsive") return "its process does not answer";
  if (phase == "loading") return "a process is loading the model";
  if (phase == "idle") return "waits for jobs";
  if (phase == "stopping") return emulated ? "stops" : "saves every job and stops";
  return printable(phase);
}

bool can_be_resumed(const RunReport& run) { return !run.emulated && (run.phase == "interrupted" || run.phase == "killed"); }

std::vector<std::string> run_screen(const RunView& view, const ScreenStyle& style, const ScreenState& state) {
  constexpr size_t least_columns = 12;
  if (style.columns < least_columns) {
    ScreenStyle wider = style;
    wider.columns = least_columns;
    wider.colour = false;
    std::vector<std::string> lines = run_screen(view, wider, state);
    for (std::string& line : lines) line = fitted(line, style);
    return lines;
  }
  const std::vector<Column> columns = columns_for(view, style);
  std::vector<std::string> lines = head(view, style), why = reasons(view, style);
  const bool bounded = style.rows > 0;
  const bool has_titles = !view.jobs.empty() && (!bounded || style.rows > 3);
  if (!bounded || style.rows >= 8) lines.emplace_back();
  const std::vector<std::string> footer = footer_of(state, style, lines.size() + (has_titles ? 1 : 0) + view.jobs.size() + why.size());
  const size_t below = footer.size() + (has_titles ? 1 : 0);
  if (bounded) {
    const size_t taken = below + std::min<size_t>(view.jobs.size(), 2);  // whatever stands above, some jobs are seen
    const size_t most = style.rows <= 2 ? 0 : style.rows > taken ? style.rows - taken : 1;
    lines.resize(std::min(lines.size(), most));
  }
  size_t room = view.jobs.size();
  if (bounded) {
    const size_t taken = lines.size() + below;
    room = style.rows > taken ? style.rows - taken : 1;
    // Reasons take at most a third of what the jobs leave, and never their last line.
    if (room < view.jobs.size() + why.size()) why.resize(std::min(why.size(), room / 3));
    room -= std::min(why.size(), room - 1);
  }
  const bool hides = view.jobs.size() > room;
  if (hides && room > 2) --room;
  const auto [first, end] = shown_jobs(view, state.selected, room);
  if (has_titles) lines.push_back(title_row(columns, style));
  for (size_t i = first; i < end; ++i) lines.push_back(row(columns, view.jobs[i], view.jobs[i].report.name == state.selected, style));
  if (hides && end - first == room && room >= 2) {
    lines.push_back(coloured(fitted(fmt::format("  {} more above, {} below", first, view.jobs.size() - end), style), Colour::faint, style));
  }
  lines.insert(lines.end(), why.begin(), why.end());
  if (bounded) {
    const size_t last = style.rows - footer.size();
    if (lines.size() + 2 <= last && !state.events.empty()) {
      const size_t count = std::min(state.events.size(), last - lines.size() - 1);
      lines.resize(last - count);
      for (size_t i = state.events.size() - count; i < state.events.size(); ++i) {
        lines.push_back(coloured(fitted(state.events[i], style), Colour::faint, style));
      }
    }
    lines.resize(last);
  }
  for (const std::string& line : footer)
    lines.push_back(coloured(in_columns(line, style.columns, Align::left, style.unicode), Colour::reversed, style));
  return lines;
}

std::string neighbour(const RunView& view, const std::string& selected, int direction) {
  if (view.jobs.empty()) return "";
  const auto found = std::find_if(view.jobs.begin(), view.jobs.end(), [&](const JobView& job) { return job.report.name == selected; });
  if (found == view.jobs.end()) return view.jobs.front().report.name;
  const auto last = static_cast<std::ptrdiff_t>(view.jobs.size()) - 1;
  return view.jobs[static_cast<size_t>(std::clamp<std::ptrdiff_t>(found - view.jobs.begin() + direction, 0, last))].report.name;
}

}  // namespace cotune
