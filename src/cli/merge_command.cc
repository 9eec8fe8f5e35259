#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "base/error.h"
#include "base/quantity_text.h"
#include "cli/commands.h"
#include "cli/inputs/model_of_adapter.h"
#include "cli/inputs/run_setup.h"
#include "jobs/memory_size.h"
#include "train/adapter_folder.h"
#include "train/merged_model.h"

namespace cotune {
namespace {

struct MergeArguments {
  std::string model, adapter, output, dtype = "auto", max_file_size = "5GB";
};

std::optional<at::ScalarType> dtype_of(const std::string& name) {
  if (name == "auto") return std::nullopt;
  return name == "float16" ? at::kHalf : torch_dtype(name);
}

void merge(const MergeArguments& arguments) {
  MergeSettings settings;
  settings.dtype = dtype_of(arguments.dtype);
  settings.max_file_bytes = parse_memory_size(arguments.max_file_size)->bytes;
  const std::filesystem::path folder = find_adapter_folder(arguments.adapter);
  const ModelFiles model = open_model(model_of_adapter(arguments.model, folder));
  const std::unique_ptr<Adapter> adapter = open_adapter(folder, model.config, at::kDouble, at::kCPU);
  const bool terminal = isatty(STDERR_FILENO) != 0;
  const auto progress = [&](int64_t done, int64_t all) {
    if (terminal) fmt::print(stderr, "\r{} of {}\033[K", bytes_text(done), bytes_text(all));
  };
  const MergeReport report = write_merged_model(model, WeightChanges(*adapter), arguments.output, settings, progress);
  if (terminal) fmt::print(stderr, "\r\033[K");
  fmt::print("{}: {} weights in {}, {} of them changed by {}; {}\n", arguments.output, report.tensors,
             report.files == 1 ? "one file" : fmt::format("{} files", report.files), report.changed, folder.string(), bytes_text(report.bytes));
}

}  // namespace

void add_merge_command(CLI::App& app) {
  auto arguments = std::make_shared<MergeArguments>();
  MergeArguments& to = *arguments;
  CLI::App* command = app.add_subcommand("merge", "Write a model with an adapter merged into its weights: a Hugging Face folder");
  command->add_option("--adapter", to.adapter, "Adapter folder, or the name of an adapter in the Hugging Face cache; a job's folder or a run's folder with one job will do")
      ->required();
  command->add_option("--output", to.output, "The folder to write; it must be empty or not exist")->required();
  command->add_option("--model", to.model, "Hugging Face folder, or the name of a model in the Hugging Face cache; default: the one that the adapter names");
  command->add_option("--dtype", to.dtype, "Type of the written weights: float32, bfloat16, float16, float64, or auto: as the model's files have them")
      ->check(CLI::IsMember({"auto", "float32", "bfloat16", "float16", "float64"}))
      ->capture_default_str();
  command->add_option("--max-file-size", to.max_file_size, "Most bytes of weights in one file, such as 5GB or 512MiB; one weight never stands in two")
      ->check([](const std::string& text) {
        const std::optional<MemorySize> size = parse_memory_size(text);
        return size && size->bytes > 0 ? "" : "must be an amount such as 5GB or 512MiB (at least 1MiB), got " + text;
      })
      ->capture_default_str();
  command->callback([arguments] { merge(*arguments); });
}

}  // namespace cotune
