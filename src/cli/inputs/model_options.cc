#include "cli/inputs/model_options.h"

#include <ATen/Parallel.h>

#include <CLI/CLI.hpp>
#include <variant>

#include "cli/inputs/usable_threads.h"
#include "cli/manual/command_description.h"
#include "jobs/emulated_file.h"
#include "jobs/option_table.h"
#include "jobs/option_value.h"
#include "ops/memory.h"

namespace cotune {
namespace {

/// Accepts what the jobs file does, and says what that is otherwise.
CLI::Validator as_in_jobs_file(Section section, const char* key) {
  const auto read = [section, key](std::string& text) -> std::string {
    auto value = read_option_value(*find_option(section, key), YAML::Node(text), true);
    if (const auto* mistake = std::get_if<ValueMistake>(&value)) return mistake->message;
    text = std::get<std::string>(std::get<OptionValue>(value));
    return "";
  };
  return CLI::Validator(read, "");
}

}  // namespace

void add_model_options(CLI::App& command, ModelOptions& to) {
  command.add_option(
      "--model", to.model,
      "Hugging Face folder, GGUF file, or the name of a model in the Hugging Face cache; default: the one that the adapter names");
  command.add_option("--adapter", to.adapters,
                     "[NAME=]FOLDER of an adapter, or its name in the Hugging Face cache; a job's folder, or a run's for all of its jobs; "
                     "`base`: the model alone. Repeated: all of them together")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->allow_extra_args(false);
  command
      .add_option("--dtype", to.dtype,
                  "Compute type; auto: bfloat16 where the processor multiplies it, else float32")
      ->transform(as_in_jobs_file(Section::model, "dtype"))
      ->type_name(value_type(find_option(Section::model, "dtype")->accepted));
  command.add_option("--device", to.device, "Where to compute; auto: a GPU where one can be used, else the CPU")
      ->transform(as_in_jobs_file(Section::run, "device"))
      ->type_name(value_type(find_option(Section::run, "device")->accepted.choices))
      ->check([](const std::string& text) {
        return emulated_file(text).empty() ? "" : std::string("an emulated device computes no answer; accepted are auto, cpu and cuda");
      });
  command.add_option("--threads", to.threads, "Worker threads; 0: one per core")->check(CLI::Range(0, 4096));
}

void use_threads(const ModelOptions& options) {
  install_counting_allocator();
  if (options.threads > 0) at::set_num_threads(static_cast<int>(usable_threads(options.threads, "--threads")));
}

}  // namespace cotune
