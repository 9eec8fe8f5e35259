#pragma once

#include <chrono>
#include <exception>
#include <span>
#include <string>

namespace CLI {
class App;
}

namespace cotune {

/// Adds one subcommand with its options and its callback. One file per subcommand.
using AddCommand = void (*)(CLI::App& app);

/// The program: parses the command line, runs one of these subcommands, and turns failures into messages and exit codes:
/// 0 done; 1 the machine or a job failed; 2 the user's mistake; 3 a bug in cotune; 130 stopped by a signal after saving.
/// version: what --version prints; nullptr where the caller has looked and the command line asks for a subcommand.
int run_command_line(std::span<const AddCommand> commands, std::string (*version)(), int argc, char** argv);

/// The exit code of a program that this ends.
int exit_code_of(const std::exception_ptr& error);

/// What the subcommand that ran wants the program to exit with.
int& exit_code();

/// When main began: main.cc hands it to libcotune_commands.so, whose libraries take a while to load.
std::chrono::steady_clock::time_point& program_start();

}  // namespace cotune
