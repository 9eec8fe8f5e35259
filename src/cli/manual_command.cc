#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

#include "base/counted.h"
#include "base/error.h"
#include "base/file.h"
#include "cli/commands.h"
#include "cli/manual/build_facts.h"
#include "cli/manual/manual_page.h"
#include "cli/manual/markdown_manual.h"
#include "console/output.h"
#include "console/output_file.h"

namespace cotune {
namespace {

struct ManualArguments {
  std::string command, output;
  bool markdown = false;
};

void write_manual(const ManualArguments& arguments, const CommandDescription& program) {
  if (arguments.markdown) {
    print_line(markdown_manual(program));
    return;
  }
  const auto pages = manual_pages(program, program.name + " " + program_version(), source_date());
  if (!arguments.output.empty()) {
    refuse_standard_output("--output", arguments.output);
    std::filesystem::create_directories(arguments.output);
    for (const auto& [name, text] : pages) write_file_atomically(std::filesystem::path(arguments.output) / name, text);
    print_line(fmt::format("wrote {} to {}", counted(std::ssize(pages), "page"), arguments.output));
    return;
  }
  const auto page = pages.find(program.name + (arguments.command.empty() ? "" : "-" + arguments.command) + ".1");
  if (page == pages.end()) throw_user_error("manual: there is no command `{}`; --help lists them", arguments.command);
  std::fwrite(page->second.data(), 1, page->second.size(), stdout);
}

}  // namespace

void add_manual_command(CLI::App& app) {
  auto arguments = std::make_shared<ManualArguments>();
  CLI::App* command = app.add_subcommand("manual", "Write the manual page of the program or of a command: `cotune manual train | man -l -`");
  CLI::Option* name = command->add_option("command", arguments->command, "The command; none: the program");
  std::vector<std::string> names;
  for (const CLI::App* each : app.get_subcommands({})) names.push_back(each->get_name());
  name->type_name(value_type(names));
  CLI::Option* output = command->add_option("--output", arguments->output, "Write all pages into this folder")->excludes(name);
  command->add_flag("--markdown", arguments->markdown, "All commands as one page of Markdown, docs/command-line.md")
      ->excludes(name)
      ->excludes(output);
  command->callback([arguments, &app] { write_manual(*arguments, describe(app)); });
}

}  // namespace cotune
