#include "cli/reporting/plan_lines.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "console/name_column.h"
#include "watch/terminal.h"

namespace cotune {
namespace {

constexpr size_t most_columns = 80, most_tasks = 6;

/// Words in lines that the terminal has room for, of at most 80 columns: the first begins with `indent` spaces, the others with two.
void append_wrapped(std::vector<std::string>& lines, size_t indent, const std::string& text) {
  const size_t columns = std::min(most_columns, terminal_size().first);
  std::string line(indent, ' ');
  size_t begin = 0;
  bool is_first = true;
  while (begin < text.size()) {
    size_t end = text.find(' ', begin);
    if (end == std::string::npos) end = text.size();
    const std::string word = text.substr(begin, end - begin);
    if (!is_first && line.size() + 1 + word.size() > columns) {
      lines.push_back(line);
      line = "  " + word;
    } else {
      line += (is_first ? "" : " ") + word;
    }
    is_first = false;
    begin = end + 1;
  }
  lines.push_back(line);
}

std::string short_seconds(double seconds) {
  return fmt::format("{:.3g} s", seconds);
}

std::string task_text(const std::vector<std::string>& jobs, const SweepOfJob& sweeps) {
  std::vector<std::string> entries = listed_jobs(jobs, sweeps);
  for (std::string& entry : entries) {
    if (std::count(jobs.begin(), jobs.end(), entry) == 0) continue;  // it stands for several
    entry = name_column(entry, name_column_width({entry}));
    entry.erase(entry.find_last_not_of(' ') + 1);
  }
  return fmt::format("{}", fmt::join(entries, "+"));
}

/// `a+b | c | d`; of many the first, and how many more: `a | b | c | d | e | 187 more`.
std::string tasks_text(const std::vector<std::vector<std::string>>& tasks, const SweepOfJob& sweeps) {
  std::vector<std::string> texts;
  for (const std::vector<std::string>& task : tasks) {
    const bool is_last_room = texts.size() + 1 == most_tasks && tasks.size() > most_tasks;
    texts.push_back(is_last_room ? fmt::format("{} more", tasks.size() - texts.size()) : task_text(task, sweeps));
    if (is_last_room) break;
  }
  return fmt::format("{}", fmt::join(texts, " | "));
}

}  // namespace

std::vector<std::string> plan_lines(const PlannedRound& plan, const SweepOfJob& sweeps) {
  std::vector<std::string> lines;
  const JobGrouping& taken = plan.taken();
  append_wrapped(lines, 0, fmt::format("plan ({}): {}: {}", plan.cause, taken.name, tasks_text(taken.tasks, sweeps)));
  append_wrapped(lines, 2,
                 fmt::format("{} a round, predicted by {}; {}", short_seconds(taken.seconds), plan.costs, plan.reason));
  std::vector<std::string> others;
  for (size_t i = 0; i < plan.alternatives.size(); ++i) {
    if (i != plan.chosen)
      others.push_back(fmt::format("{} {}", plan.alternatives[i].name, short_seconds(plan.alternatives[i].seconds)));
  }
  if (!others.empty()) append_wrapped(lines, 2, fmt::format("otherwise: {}", fmt::join(others, ", ")));
  return lines;
}

}  // namespace cotune
