#include "console/command_line.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <iostream>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/abrupt_exit.h"
#include "base/bus_error.h"
#include "base/diagnostics.h"
#include "base/error.h"
#include "base/visible_text.h"

namespace cotune {

int& exit_code() {
  static int code = 0;
  return code;
}

std::chrono::steady_clock::time_point& program_start() {
  static std::chrono::steady_clock::time_point start;
  return start;
}

namespace {

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({})) {
    if (!command->get_name().empty()) names.push_back(command->get_name());  // groups of options have none
  }
  return names;
}

std::string suggestion(const std::string& word, const std::vector<std::string>& candidates) {
  const std::string near = nearest_name(word, candidates);
  return near.empty() ? "" : fmt::format("; did you mean `{}`?", near);
}

/// An option in place of a command, which the app may have; one that it has not would be blamed on the command that is missing.
void check_option(const CLI::App& app, const std::string& word) {
  std::vector<std::string> options;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) options.push_back("--" + name);
    for (const std::string& name : option->get_snames()) options.push_back("-" + name);
  }
  const std::string name = word.substr(0, word.find('='));
  if (std::find(options.begin(), options.end(), name) != options.end()) return;
  throw_user_error("`{}` was not expected{}", word, suggestion(name, options));
}

/// A first argument that is no command would be blamed on the command that is missing; likewise below a command that has its own.
void check_command(const CLI::App& app, int argc, char** argv) {
  const std::vector<std::string> names = command_names(app);
  if (names.empty()) return;
  if (argc < 2) throw_user_error("a command is needed: {}; --help says what they do", fmt::join(names, ", "));
  const std::string word = argv[1];
  if (word.starts_with('-')) return check_option(app, word);
  if (std::find(names.begin(), names.end(), word) != names.end()) return check_command(*app.get_subcommand(word), argc - 1, argv + 1);
  throw_user_error("there is no command `{}`{}\ncommands: {}; --help says what they do", word,
                   suggestion(word, names), fmt::join(names, ", "));
}

/// The arguments that the command, or a command of it, does not have, each with the option that may be meant.
std::string unexpected_arguments(const CLI::App& app) {
  std::string text;
  for (const CLI::App* command : app.get_subcommands()) {
    text += unexpected_arguments(*command);
    std::vector<std::string> options;
    for (const CLI::Option* option : command->get_options()) {
      for (const std::string& name : option->get_lnames()) options.push_back("--" + name);
    }
    for (const std::string& word : command->remaining()) {
      text += fmt::format("{}: `{}` was not expected{}\n", command->get_name(), word,
                          word.starts_with("--") ? suggestion(word.substr(0, word.find('=')), options) : "");
    }
  }
  return text;
}

std::string output_complaint(int reason) {
  return fmt::format("standard output: cannot be written: {}", std::strerror(reason));
}

/// The one place where messages of errors are printed. What they quote of names, paths and files may hold anything.
void complain(std::string_view text) { write_to_standard_error(visible_text(text) + "\n"); }

/// What the parser of command lines has to say: help, or a mistake. Returns the exit code.
int say(const CLI::App& app, const CLI::ParseError& error) {
  std::ostringstream mistake;
  const int code = app.exit(error, std::cout, mistake);
  write_to_standard_error(visible_text(mistake.str()));
  return code == 0 ? 0 : 2;
}

/// What ends the program, as its user is told.
struct Failure {
  std::string text;
  int exit_code = 1;
};

Failure failure_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const UserError& mistake) {
    return {mistake.what(), 2};
  } catch (const std::filesystem::filesystem_error& refused) {  // a folder of another user, links in a circle: as read_file says it
    return {fmt::format("{}: {}", refused.path1().string(), refused.code().message()), refused.code() == std::errc::permission_denied ? 2 : 1};
  } catch (const std::system_error& refused) {  // as fmt::print throws it where standard output cannot be written
    if (std::ferror(stdout) != 0) return {output_complaint(refused.code().value())};
    if (refused.code() != std::errc::resource_unavailable_try_again) return {refused.what()};
    return {"no thread can be made: the system's limit of processes (ulimit -u, pids of a container) or of address space (ulimit -v) is reached"};
  } catch (const InternalError& bug) {
    return {bug.what(), 3};
  } catch (const std::exception& other) {
    return {other.what()};
  }
}

int run_subcommand(std::span<const AddCommand> commands, std::string (*version)(), int argc, char** argv) {
  CLI::App app{"Fine-tunes many adapters at once on one shared, frozen language model."};
  app.name("cotune");
  if (version != nullptr) app.set_version_flag("--version", version, "Print version, kernels and plugins");
  app.require_subcommand(1);
  for (const AddCommand add : commands) add(app);
  try {
    check_command(app, argc, argv);
    app.parse(argc, argv);
  } catch (const CLI::ExtrasError& error) {
    const std::string unexpected = unexpected_arguments(app);
    if (unexpected.empty()) return say(app, error);
    complain(unexpected + "--help lists the options");
    return 2;
  } catch (const CLI::ParseError& error) {
    return say(app, error);
  } catch (...) {
    const Failure failure = failure_of(std::current_exception());
    complain(failure.text);
    return failure.exit_code;
  }
  return exit_code();
}

}  // namespace

int exit_code_of(const std::exception_ptr& error) { return failure_of(error).exit_code; }

int run_command_line(std::span<const AddCommand> commands, std::string (*version)(), int argc, char** argv) {
  report_bus_errors();
  std::signal(SIGXFSZ, SIG_IGN);  // a limit on file sizes is an error of write() like a full disk
  const int code = run_subcommand(commands, version, argc, argv);
  std::cout.flush();
  if (std::cout && std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  if (code != 0) return code;
  write_to_standard_error(output_complaint(errno) + "\n");
  return 1;
}

}  // namespace cotune
