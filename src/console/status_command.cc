#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "console/command_line.h"
#include "console/output.h"
#include "console/run_commands.h"
#include "console/run_view_source.h"
#include "control/protocol.h"

namespace cotune {
namespace {

struct StatusArguments {
  std::string run = "runs/latest";
  bool json = false;
};

int print_status(const StatusArguments& arguments) {
  std::vector<std::string> damage;
  const RunView view = current_view(arguments.run, damage);
  tell_of_damage(damage);
  if (arguments.json) {
    ControlReply reply;
    reply.view = view;
    print_line(to_line(reply, ""));
  } else {
    print_view(view);
  }
  return output_failed() ? 1 : 0;
}

}  // namespace

void add_status_command(CLI::App& app) {
  auto arguments = std::make_shared<StatusArguments>();
  CLI::App* command = app.add_subcommand("status", "How a run and its jobs stand, also one that has ended (docs/watching.md)");
  command->add_option("--run", arguments->run, "The run's folder (runs/latest)");
  command->add_flag("--json", arguments->json, "One line of JSON: the reply to the request `view` (docs/control.md)");
  command->callback([arguments] { exit_code() = print_status(*arguments); });
}

}  // namespace cotune
