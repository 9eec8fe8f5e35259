#include "cli/commands.h"

int main(int argc, char** argv) { return cotune::run_command_line(argc, argv); }
