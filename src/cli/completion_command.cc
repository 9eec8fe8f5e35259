#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>

#include "cli/commands.h"
#include "cli/manual/shell_completion.h"

namespace cotune {

void add_completion_command(CLI::App& app) {
  auto shell = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand("completion", "Write a completion script for a shell to standard output (docs/installing.md)");
  command->add_option("shell", *shell, "The shell")->required()->check(CLI::IsMember({"bash", "zsh", "fish"}));
  command->callback([shell, &app] {
    const CommandDescription program = describe(app);
    const std::string script = *shell == "bash"  ? bash_completion(program)
                               : *shell == "zsh" ? zsh_completion(program)
                                                 : fish_completion(program);
    std::fwrite(script.data(), 1, script.size(), stdout);
  });
}

}  // namespace cotune
