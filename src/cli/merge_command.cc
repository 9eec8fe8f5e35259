#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "base/counted.h"
#include "base/error.h"
#include "base/quantity_text.h"
#include "cli/commands.h"
#include "cli/inputs/compute_dtype.h"
#include "cli/inputs/model_of_adapter.h"
#include "cli/inputs/model_text.h"
#include "cli/terminal/interruption.h"
#include "cli/terminal/status_line.h"
#include "console/command_line.h"
#include "console/early_stop.h"
#include "console/output_file.h"
#include "jobs/memory_size.h"
#include "merge/merged_gguf.h"
#include "merge/merged_model.h"
#include "train/adapter_folder.h"

namespace cotune {
namespace {

struct MergeArguments {
  std::string model, adapter, output, dtype = "auto", max_file_size = "5GB";
};

std::optional<at::ScalarType> dtype_to_write(const std::string& name) {
  if (name == "auto") return std::nullopt;
  return name == "float16" ? at::kHalf : torch_dtype(name);
}

/// Of a GGUF model a GGUF file can come, or a folder; of a folder a folder.
bool writes_gguf(const MergeArguments& arguments, const ModelFiles& model) {
  if (!arguments.output.ends_with(".gguf")) return false;
  if (std::filesystem::is_directory(model.path)) {
    throw_user_error("--output: {}: {} is a Hugging Face folder and is merged to one; name a folder", arguments.output, model.path.string());
  }
  if (arguments.adapter.empty())
    throw_user_error("--adapter: is needed where a GGUF file is written: without one it would be a copy of {}", model.path.string());
  if (arguments.dtype == "float64") throw_user_error("--dtype float64: in a GGUF file float32, bfloat16 or float16 are written");
  return true;
}

/// Tokens at which answers of a GGUF model end: those that its metadata name, and the one that closes an answer in its chat template.
std::vector<int32_t> ends_of_answers(const ModelFiles& model) {
  std::vector<int32_t> ids = model.tokenizer.end_of_turn_ids;
  try {
    ids = ModelText(model).end_of_turn_ids();
  } catch (const UserError&) {  // a template that cannot be parsed is written as it is
  }
  std::ranges::sort(ids);
  return ids;
}

/// Unwinds what is written: nothing of it stays.
struct Interrupted {};

void merge(const MergeArguments& arguments) {
  MergeSettings settings;
  settings.dtype = dtype_to_write(arguments.dtype);
  settings.max_file_bytes = parse_memory_size(arguments.max_file_size)->bytes;
  const std::filesystem::path folder = arguments.adapter.empty() ? "" : find_adapter_folder(arguments.adapter);
  ModelFiles model = open_cached_model(model_of_adapter(arguments.model, folder));
  const bool to_gguf = writes_gguf(arguments, model);
  const std::unique_ptr<Adapter> adapter = folder.empty() ? nullptr : open_adapter(folder, model.config, model.path, at::kDouble, at::kCPU);
  BaseModelCheck base(model);
  if (adapter != nullptr) warn_of_other_model(base, folder, adapter->setup().modules);
  if (!to_gguf && model.tokenizer.gguf) model.tokenizer.end_of_turn_ids = ends_of_answers(model);  // into generation_config.json
  catch_interruption();
  std::optional<StatusLine> line(std::in_place);
  const auto progress = [&](int64_t done, int64_t all) {
    if (interrupted()) throw Interrupted();
    if (line->is_due()) line->show(fmt::format("{} of {}", bytes_text(done), bytes_text(all)));
  };
  const WeightChanges changes = adapter == nullptr ? WeightChanges() : WeightChanges(*adapter);
  const MergeReport report = to_gguf ? write_merged_gguf(model, changes, arguments.output, settings.dtype, progress)
                                     : write_merged_model(model, changes, arguments.output, settings, progress);
  line.reset();
  const std::string changed = adapter == nullptr ? "" : fmt::format(", {} of them changed by {}", report.changed, folder.string());
  fmt::print("{}: {} in {}{}; {}\n", arguments.output, counted(report.tensors, "weight"), counted(report.files, "file"), changed,
             bytes_text(report.bytes));
}

}  // namespace

void add_merge_command(CLI::App& app) {
  auto arguments = std::make_shared<MergeArguments>();
  MergeArguments& to = *arguments;
  CLI::App* command =
      app.add_subcommand("merge", "Write a model with an adapter merged into its weights: a Hugging Face folder, or a GGUF file of a GGUF model");
  command->add_option("--adapter", to.adapter,
                      "Adapter folder, or the name of an adapter in the Hugging Face cache; a job's folder or a run's folder with one job will do. "
                      "Without it a folder gets the model alone");
  command->add_option("--output", to.output, "The folder to write, which must be empty or not exist; of a GGUF model also a file, NAME.gguf")
      ->required();
  command->add_option("--model", to.model,
                      "Hugging Face folder, GGUF file, or the name of a model in the Hugging Face cache; default: the one that the adapter names");
  command
      ->add_option("--dtype", to.dtype,
                   "Type of the written weights: float32, bfloat16, float16, float64, or auto: as the model's files have them, bfloat16 for "
                   "quantised ones. In a GGUF file, of those that change alone; auto: float16 for quantised ones")
      ->check(CLI::IsMember({"auto", "float32", "bfloat16", "float16", "float64"}))
      ->capture_default_str();
  command
      ->add_option("--max-file-size", to.max_file_size,
                   "Most bytes of weights in one file of a folder, such as 5GB or 512MiB; one weight never stands in two")
      ->check([](const std::string& text) {
        const std::optional<MemorySize> size = parse_memory_size(text);
        return size && size->bytes > 0 ? "" : "must be an amount such as 5GB or 512MiB (at least 1MiB), got " + text;
      })
      ->capture_default_str();
  command->callback([arguments] {
    refuse_standard_output("--output", arguments->output);
    try {
      merge(*arguments);
    } catch (const Interrupted&) {
      fmt::print(stderr, "interrupted: {} was not written\n", arguments->output);
      exit_code() = stopped_exit_code;
    }
  });
}

}  // namespace cotune
