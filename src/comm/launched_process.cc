#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <sstream>

#include "base/diagnostics.h"
#include "comm/launcher.h"

namespace cotune {
namespace {

constexpr int64_t most_ranks = 65536;

/// Reads variables and collects what is wrong with them.
class Variables {
 public:
  Variables(const Environment& environment, std::string set_by)
      : environment_(environment), set_by_(std::move(set_by)) {}

  bool has(const std::string& name) const { return environment_.count(name) > 0; }

  /// "" where it is missing, which is a mistake.
  std::string text(const std::string& name) {
    const auto found = environment_.find(name);
    if (found != environment_.end() && !found->second.empty()) return found->second;
    mistake(name, fmt::format("is {}; {}", found == environment_.end() ? "missing" : "empty", set_by_));
    return "";
  }

  /// `lowest` where it is no number of the range, which is a mistake.
  int64_t number(const std::string& name, int64_t lowest, int64_t highest, const std::string& why_highest = "") {
    const std::string value = text(name);
    int64_t number = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    if (!value.empty() && error == std::errc() && end == value.data() + value.size() && number >= lowest &&
        number <= highest) {
      return number;
    }
    if (!value.empty()) {
      mistake(name,
              fmt::format("must be a whole number from {} to {}{}, got '{}'", lowest, highest, why_highest, value));
    }
    return lowest;
  }

  void mistake(const std::string& name, const std::string& message) { mistakes_.add("environment", 0, name, message); }
  size_t mistake_count() const { return mistakes_.size(); }
  void throw_if_any() const { mistakes_.throw_if_any(); }

 private:
  const Environment& environment_;
  const std::string set_by_;
  Diagnostics mistakes_;
};

constexpr const char *torchrun_restarts = "TORCHELASTIC_RESTART_COUNT", *slurm_restarts = "SLURM_RESTART_COUNT";
constexpr int64_t most_restarts = 1'000'000;

bool is_of_torchrun(const Environment& environment) { return environment.count("RANK") || environment.count("WORLD_SIZE"); }

/// size, rank and local_rank.
void read_place(Variables& variables, const std::string& size, const std::string& rank, const std::string& local_rank,
                LaunchedProcess& process) {
  const size_t mistakes = variables.mistake_count();
  process.size = variables.number(size, 1, most_ranks);
  const bool size_known = variables.mistake_count() == mistakes;
  const int64_t highest = size_known ? process.size - 1 : most_ranks - 1;
  const std::string why = size_known ? fmt::format(" ({} is {})", size, process.size) : "";
  process.rank = variables.number(rank, 0, highest, why);
  process.local_rank = variables.number(local_rank, 0, highest, why);
}

LaunchedProcess torchrun_process(const Environment& environment) {
  Variables variables(environment, "torchrun sets RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT");
  LaunchedProcess process{.launcher = "torchrun"};
  read_place(variables, "WORLD_SIZE", "RANK", "LOCAL_RANK", process);
  process.master_host = variables.text("MASTER_ADDR");
  process.master_port = variables.number("MASTER_PORT", 1, 65535);
  if (variables.has("TORCHELASTIC_USE_AGENT_STORE")) {
    const std::string value = variables.text("TORCHELASTIC_USE_AGENT_STORE");
    process.launcher_listens = value == "True";
    if (!value.empty() && value != "True" && value != "False") {
      variables.mistake("TORCHELASTIC_USE_AGENT_STORE", fmt::format("must be True or False, got '{}'", value));
    }
  }
  if (variables.has(torchrun_restarts)) process.restart = variables.number(torchrun_restarts, 0, most_restarts);
  variables.throw_if_any();
  return process;
}

/// `rack[1-2]n[03-05],login` → `rack1n03`; "" where it is no list as Slurm writes them.
std::string first_host(const std::string& list) {
  std::string host;
  for (size_t i = 0; i < list.size() && list[i] != ','; ++i) {
    const char c = list[i];
    if (c == '[') {
      const size_t end = list.find(']', i);
      if (end == std::string::npos) return "";
      const std::string ranges = list.substr(i + 1, end - i - 1);
      const std::string first = ranges.substr(0, ranges.find_first_of(",-"));
      if (first.empty() || first.find_first_not_of("0123456789") != std::string::npos) return "";
      host += first;
      i = end;
    } else if (std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '.' || c == '_') {
      host += c;
    } else {
      return "";
    }
  }
  return host;
}

LaunchedProcess slurm_process(const Environment& environment) {
  Variables variables(environment, "srun sets it for each of its tasks");
  LaunchedProcess process{.launcher = "Slurm"};
  const auto either = [&](const char* first, const char* second) { return variables.has(first) ? first : second; };
  read_place(variables, either("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"), "SLURM_PROCID", "SLURM_LOCALID", process);
  if (variables.has("MASTER_ADDR")) {
    process.master_host = variables.text("MASTER_ADDR");
  } else {
    const char* name = either("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST");
    const std::string list = variables.text(name);
    process.master_host = first_host(list);
    if (!list.empty() && process.master_host.empty()) {
      variables.mistake(name, fmt::format("must list hosts as in node[01-04,07],other, got '{}'", list));
    }
  }
  if (variables.has("MASTER_PORT")) {
    process.master_port = variables.number("MASTER_PORT", 1, 65535);
  } else {
    const int64_t job = variables.number("SLURM_JOB_ID", 0, UINT32_MAX),
                  step = variables.number("SLURM_STEP_ID", 0, UINT32_MAX);
    process.master_port = 12000 + (job + 1009 * step) % 20000;
  }
  if (variables.has(slurm_restarts)) process.restart = variables.number(slurm_restarts, 0, most_restarts);
  variables.throw_if_any();
  return process;
}

}  // namespace

std::string start_key(const LaunchedProcess& process) { return fmt::format("cotune/{}.{}/", process.restart, process.own_restart); }

Environment environment_of_this_process() {
  Environment environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const size_t equals = text.find('=');
    if (equals != std::string::npos) environment.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return environment;
}

std::optional<LaunchedProcess> launched_process(const Environment& environment) {
  if (is_of_torchrun(environment)) return torchrun_process(environment);
  if (environment.count("SLURM_STEP_ID")) return slurm_process(environment);
  return std::nullopt;
}

Launching launch_of(const Environment& environment, const std::string& parent) {
  Variables variables(environment, "launchers set it");
  const auto text = [&](const char* name) { return variables.has(name) ? environment.at(name) : ""; };
  Launching launch;
  if (is_of_torchrun(environment)) {
    const std::string id = text("TORCHELASTIC_RUN_ID");
    launch.name = fmt::format("torchrun {}", id.empty() || id == "none" ? parent : id);
    if (variables.has(torchrun_restarts)) launch.restart = variables.number(torchrun_restarts, 0, most_restarts);
  } else if (const std::string job = text("SLURM_JOB_ID"); !job.empty()) {
    const std::string step = text("SLURM_STEP_ID");
    launch.name = fmt::format("Slurm job {}, step {}", job, step.empty() ? "none" : step);
    if (variables.has(slurm_restarts)) launch.restart = variables.number(slurm_restarts, 0, most_restarts);
  }
  variables.throw_if_any();
  return launch;
}

std::string name_of_process(int64_t id) {
  std::string boot, line;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  std::getline(std::ifstream(fmt::format("/proc/{}/stat", id)), line);
  // Its name, in parentheses, may hold anything; the start is the 20th word after it.
  std::istringstream words(line.substr(std::min(line.size(), line.rfind(')') + 2)));
  std::string word;
  for (int i = 0; i < 20; ++i) words >> word;
  return fmt::format("process {} of {} since {}", id, boot, words ? word : "?");
}

}  // namespace cotune
