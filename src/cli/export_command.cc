#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>

#include "base/counted.h"
#include "base/error.h"
#include "base/file.h"
#include "base/quantity_text.h"
#include "cli/commands.h"
#include "cli/inputs/model_of_adapter.h"
#include "cli/inputs/model_text.h"
#include "console/output_file.h"
#include "formats/gguf.h"
#include "merge/gguf_adapter.h"
#include "train/adapter_folder.h"

namespace cotune {
namespace {

namespace fs = std::filesystem;

struct ExportArguments {
  std::string model, adapter, output, type = "f32";
  bool overwrite = false;
};

void check_output(const fs::path& output, const fs::path& model, bool overwrite) {
  refuse_standard_output("--output", output);
  if (!fs::exists(output)) return;
  std::error_code unknown;
  if (fs::equivalent(output, model, unknown)) throw_user_error("--output: {}: is the model itself; choose another file", output.string());
  if (fs::is_directory(output)) throw_user_error("--output: {}: is a folder; choose a file", output.string());
  if (!overwrite) throw_user_error("--output: {}: exists; choose another file, or replace it with --overwrite", output.string());
  bool is_adapter = fs::is_regular_file(output) && fs::file_size(output) == 0;
  try {
    is_adapter = is_adapter || GgufFile(output).text("general.type") == "adapter";
  } catch (const UserError&) {  // no GGUF file
  }
  if (!is_adapter)
    throw_user_error("--output: {}: is there, and is no GGUF adapter: only such a file is replaced; name another one, or remove it", output.string());
}

void export_adapter(const ExportArguments& arguments) {
  const fs::path folder = find_adapter_folder(arguments.adapter);
  ModelSpec spec;
  spec.path = model_of_adapter(arguments.model, folder).string();
  check_output(arguments.output, spec.path, arguments.overwrite);
  const ModelFiles model = model_without_weights(spec);
  const std::unique_ptr<Adapter> adapter = open_adapter(folder, model.config, spec.path, at::kFloat, at::kCPU);
  BaseModelCheck base(model);
  warn_of_other_model(base, folder, adapter->setup().modules);
  const GgufType type = arguments.type == "f16" ? GgufType::F16 : GgufType::F32;
  write_gguf_adapter(arguments.output, *adapter, type, fs::path(arguments.output).stem().string());
  fmt::print("{}: LoRA for {} of {}, {}\n", arguments.output, counted(std::ssize(adapter->setup().modules), "module"), spec.path,
             bytes_text(static_cast<int64_t>(fs::file_size(arguments.output))));
}

}  // namespace

void add_export_command(CLI::App& app) {
  auto arguments = std::make_shared<ExportArguments>();
  ExportArguments& to = *arguments;
  CLI::App* command = app.add_subcommand("export", "Write a LoRA adapter as a GGUF file for llama.cpp");
  command
      ->add_option("--adapter", to.adapter,
                   "Adapter folder, or the name of an adapter in the Hugging Face cache; a job's folder or a run's folder with one job will do")
      ->required();
  command->add_option("--output", to.output, "The file to write, NAME.gguf")->required()->check([](const std::string& text) {
    return text.ends_with(".gguf") ? "" : "must end in .gguf, the one format there is, got " + text;
  });
  command->add_flag("--overwrite", to.overwrite, "Replace --output where it exists; the model itself is never replaced");
  command->add_option("--model", to.model,
                      "Hugging Face folder, GGUF file, or the name of a model in the Hugging Face cache; default: the one that the adapter names");
  command->add_option("--type", to.type, "Type of the values: f32, or f16")->check(CLI::IsMember({"f32", "f16"}))->capture_default_str();
  command->callback([arguments] { export_adapter(*arguments); });
}

}  // namespace cotune
