#include "cli/commands.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <iostream>

#include "base/error.h"

namespace cotune {

int& exit_code() {
  static int code = 0;
  return code;
}

namespace {

int run_subcommand(int argc, char** argv) {
  CLI::App app{"Fine-tunes many adapters at once on one shared, frozen language model."};
  app.set_version_flag("--version", std::string("cotune ") + COTUNE_VERSION);
  app.require_subcommand(1);
  add_train_command(app);
  add_data_command(app);
  add_generate_command(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const UserError& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 2;
  } catch (const InternalError& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 3;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
  return exit_code();
}

}  // namespace

int run_command_line(int argc, char** argv) {
  const int code = run_subcommand(argc, argv);
  std::cout.flush();
  if (std::cout && std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  if (code != 0) return code;
  fmt::print(stderr, "standard output: cannot be written: {}\n", std::strerror(errno));
  return 1;
}

}  // namespace cotune
