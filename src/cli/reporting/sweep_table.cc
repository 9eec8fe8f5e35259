#include "cli/reporting/sweep_table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>

#include "base/counted.h"
#include "cli/reporting/progress.h"
#include "jobs/enum_names.h"
#include "train/training_job.h"
#include "watch/screen_text.h"
#include "watch/terminal.h"

namespace cotune {
namespace {

constexpr size_t widest_value = 24, narrowest = 6, usual_columns = 80;
constexpr size_t most_rungs_shown = 6;

struct Column {
  std::string title;
  Align align = Align::left;
  std::vector<std::string> cells;
  size_t width = 0;
  size_t least = 0;  ///< to which it may be cut before others are
};

Column column_of(std::string title, Align align, std::vector<std::string> cells, size_t widest) {
  Column column{std::move(title), align, std::move(cells)};
  column.width = columns_of(column.title);
  for (const std::string& cell : column.cells) column.width = std::max(column.width, columns_of(cell));
  column.width = std::min(column.width, widest);
  column.least = column.width;
  return column;
}

/// Of values: numbers in full, texts cut.
size_t least_width(const Column& column) {
  size_t least = narrowest;
  for (const std::string& cell : column.cells) {
    const bool is_number = !cell.empty() && cell.find_first_not_of("0123456789.e-+") == std::string::npos;
    if (is_number) least = std::max(least, cell.size());
  }
  return std::min(least, column.width);
}

std::vector<std::string> cells(const SweepStanding& sweep, const std::function<std::string(const SweepStanding::Row&)>& text) {
  std::vector<std::string> result;
  for (const SweepStanding::Row& row : sweep.rows) result.push_back(printable(text(row)));
  return result;
}

CandidateScore score_in(const SweepStanding& sweep, const SweepStanding::Row& row) {
  return score_of(sweep.rules.metric, row.loss, row.accuracy);
}

/// By what evaluations say, whoever has left an adapter already; at the end those that never will.
SweepStanding by_score(SweepStanding sweep) {
  const auto is_out = [](const SweepStanding::Row& row) { return has_ended(row.job->state().status) && !row.has_adapter; };
  std::stable_sort(sweep.rows.begin(), sweep.rows.end(), [&](const auto& a, const auto& b) {
    return is_out(a) != is_out(b) ? is_out(b) : score_in(sweep, a).is_better_than(score_in(sweep, b));
  });
  return sweep;
}

/// Where the best adapter is, and who may still leave a better one.
std::vector<std::string> best_lines(const SweepStanding& sweep, const SweepStanding& sorted, const std::filesystem::path& folder) {
  const SweepStanding::Row *best = sweep.best(), &first = sorted.rows.front();
  const std::string text =
      best != nullptr ? fmt::format("best     {}, in {}", best->job->spec().name, folder.string()) : "no candidate has left an adapter yet";
  const bool goes_on = !has_ended(first.job->state().status) && !first.has_adapter && score_in(sweep, first).is_a_number();
  if (!goes_on || (best != nullptr && !score_in(sweep, first).is_better_than(score_in(sweep, *best)))) return {text};
  return {text + (best != nullptr ? ": of those that have left an adapter" : ""),
          fmt::format("ahead    {}, which goes on with --resume", first.job->spec().name)};
}

std::string end_text(const SweepStanding::Row& row) {
  const JobState& state = row.job->state();
  if (!state.stopped.empty() && row.has_adapter) {
    const RungRecord& rung = row.rungs.empty() ? RungRecord{} : row.rungs.back();
    return rung.judgement ? fmt::format("halved, {}/{}", rung.judgement->rank, rung.judgement->of) : "halved";
  }
  return ended_text(state);
}

/// `r8-lr0.0003` of `sql-r8-lr0.0003`.
std::string own_name(const std::string& candidate, const std::string& sweep) {
  return candidate.starts_with(sweep + "-") ? candidate.substr(sweep.size() + 1) : candidate;
}

/// `learning_rate` of `train.learning_rate`.
std::string last_part(const std::string& option) { return option.substr(option.rfind('.') + 1); }

std::vector<std::string> varied(const SweepStanding& sweep) {
  std::vector<std::string> options;
  for (const std::string& option : sweep.options) {
    std::set<std::string> values;
    for (const SweepStanding::Row& row : sweep.rows) values.insert(swept_value(row.job->spec(), option));
    if (values.size() > 1) options.push_back(option);
  }
  return options;
}

/// The columns beside one another, cut where the line is full.
std::vector<std::string> lines_of(std::vector<Column> columns, size_t row_count, size_t width) {
  const auto total = [&] {
    size_t sum = 0;
    for (const Column& column : columns) sum += column.width + 2;
    return sum - 2;
  };
  // The widest title or text gives first; numbers, names and ends only when nothing else is left.
  for (const bool gives_all : {false, true}) {
    while (total() > width) {
      Column* widest = nullptr;
      for (Column& column : columns) {
        const bool may_give = column.width > (gives_all ? narrowest : column.least);
        if (may_give && (widest == nullptr || column.width > widest->width)) widest = &column;
      }
      if (widest == nullptr) break;
      --widest->width;
    }
  }
  const bool unicode = shows_unicode();
  std::vector<std::string> lines;
  const auto add = [&](const auto& text_of) {
    std::string line;
    for (const Column& column : columns) line += (line.empty() ? "" : "  ") + in_columns(text_of(column), column.width, column.align, unicode);
    line.erase(line.find_last_not_of(' ') + 1);
    lines.push_back(std::move(line));
  };
  add([](const Column& column) { return column.title; });
  for (size_t i = 0; i < row_count; ++i) {
    add([i](const Column& column) { return column.cells[i]; });
  }
  return lines;
}

}  // namespace

std::vector<std::string> sweep_table(const SweepStanding& standing, const std::filesystem::path& folder, size_t columns) {
  const SweepStanding sweep = by_score(standing);
  const size_t widest = widest_value + std::max(columns, usual_columns) - usual_columns;
  std::vector<Column> all;
  all.push_back(column_of("sweep " + sweep.name, Align::left,
                          cells(sweep, [&](const auto& row) { return own_name(row.job->spec().name, sweep.name); }), columns));
  for (const std::string& option : varied(sweep)) {
    all.push_back(column_of(last_part(option), Align::right,
                            cells(sweep, [&](const auto& row) { return swept_value(row.job->spec(), option); }), widest));
    all.back().least = least_width(all.back());
  }
  all.push_back(column_of("loss", Align::right,
                          cells(sweep, [](const auto& row) { return std::isnan(row.loss) ? "" : fmt::format("{:.4f}", row.loss); }), 10));
  if (sweep.rules.metric == SweepMetric::eval_accuracy) {
    all.push_back(column_of("right", Align::right, cells(sweep, [](const auto& row) { return accuracy_text(row.accuracy); }), 10));
  }
  all.push_back(column_of("step", Align::right, cells(sweep, [](const auto& row) { return std::to_string(row.job->state().step); }), 10));
  all.push_back(column_of("ended", Align::left, cells(sweep, end_text), 20));
  std::vector<std::string> lines = lines_of(std::move(all), sweep.rows.size(), columns);
  for (std::string& line : best_lines(standing, sweep, folder)) lines.push_back(std::move(line));
  return lines;
}

std::string sweep_line(const std::string& name, const std::vector<const TrainingJob*>& candidates) {
  std::vector<std::string> options;
  std::set<std::vector<int64_t>> rungs;
  for (const TrainingJob* job : candidates) {
    for (const auto& [option, value] : job->spec().sweep.values) {
      if (!std::count(options.begin(), options.end(), option)) options.push_back(option);
    }
    rungs.insert(job->rungs());
  }
  const SweepSpec& rules = candidates.front()->spec().sweep;
  std::string text = fmt::format("sweep {}: {} of {}", name, counted(std::ssize(candidates), "candidate"), fmt::join(options, ", "));
  if (rules.max_concurrent > 0) text += fmt::format("; {} at a time", rules.max_concurrent);
  if (!rules.halving.is_on()) return text;
  if (rungs.size() > 1) return text + "; rungs at steps that differ";
  std::vector<int64_t> steps = *rungs.begin();
  const bool has_more = steps.size() > most_rungs_shown;
  if (has_more) steps.resize(most_rungs_shown);
  return text + fmt::format("; rungs at steps {}{}", fmt::join(steps, ", "), has_more ? " and further" : "");
}

}  // namespace cotune
