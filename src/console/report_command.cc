#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "console/command_line.h"
#include "console/output.h"
#include "console/output_file.h"
#include "console/run_commands.h"
#include "console/run_view_source.h"
#include "watch/run_log.h"
#include "watch/run_page.h"

namespace cotune {
namespace {

struct ReportArguments {
  std::string run = "runs/latest", output;
};

int write_report(const ReportArguments& arguments) {
  const RunLog log = read_run_log(arguments.run);
  const std::filesystem::path file =
      arguments.output.empty() ? std::filesystem::path(arguments.run) / "report.html" : std::filesystem::path(arguments.output);
  std::vector<std::string> damage;  // as in the log
  write_output("--output", file, report_output, run_page(log, current_view(arguments.run, damage).run.phase));
  tell_of_damage(log.damage);
  print_line(fmt::format("wrote {}", file.string()));
  return output_failed() ? 1 : 0;
}

}  // namespace

void add_report_command(CLI::App& app) {
  auto arguments = std::make_shared<ReportArguments>();
  CLI::App* command = app.add_subcommand("report", "A run as one page of HTML: losses, memory, throughput, answers (docs/watching.md)");
  command->add_option("--run", arguments->run, "The run's folder (runs/latest)");
  command->add_option("--output", arguments->output, "The file to write (report.html in the run's folder)");
  command->callback([arguments] { exit_code() = write_report(*arguments); });
}

}  // namespace cotune
