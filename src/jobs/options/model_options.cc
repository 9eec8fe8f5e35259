#include "jobs/options/sections.h"

#include <fmt/format.h>

#include "jobs/options/option_entry.h"

namespace cotune::options {
namespace {

Condition random_weights() {
  return {.holds = [](const OptionTarget& target) { return target.model->weights == "random"; },
          .summary = "with weights random",
          .complaint = [](const std::string& key, const OptionTarget& target) {
            return fmt::format("`{}` belongs to weights random; this model's weights are {}", key,
                               target.model->weights);
          },
          .reads = {"model.weights"}};
}

}  // namespace

void add_model(std::vector<Option>& table) {
  table.push_back(field(Section::model, "path", COTUNE_FIELD(model->path), hub_name_or(OptionType::path),
                        "Folder of a Hugging Face model, a GGUF file, or the name of a model in the Hugging Face cache: `organisation/name` or "
                        "`organisation/name/file.gguf`, with `@revision` for another than `main` (see *Names instead of paths*). A file or folder of "
                        "that name wins.",
                        {.aliases = {"base_model", "model_name_or_path"},
                         .root_aliases = {"base_model"},
                         .group = "model",
                         .alternative = "path"}));
  table.push_back(field(Section::model, "config", COTUNE_FIELD(model->config), hub_name_or(OptionType::name_or_path),
                        "A shape without a checkpoint: the name of a preset, a config.json file or a folder with one, or the name of a model in "
                        "the Hugging Face cache.",
                        {.group = "model", .alternative = "config"}));
  table.push_back(
      field(Section::model, "weights", COTUNE_FIELD(model->weights), choice({"file", "none", "random"}),
            "`file`: those of `path`. With `config`: `random`, or `none` (for `cotune plan`, `cotune simulate` and an emulated device)."));
  table.push_back(field(Section::model, "seed", COTUNE_FIELD(model->seed), of_type(OptionType::seed),
                        "Seed of random weights.", {.condition = random_weights()}));
  table.push_back(field(Section::model, "dtype", COTUNE_FIELD(model->dtype),
                        choice({"auto", "float32", "bfloat16", "float64"},
                               {{"fp32", "float32"}, {"f32", "float32"}, {"bf16", "bfloat16"}, {"f64", "float64"}}),
                        "Compute type of the frozen model; `auto`: bfloat16 where the processor or GPU multiplies it, else float32, whatever "
                        "type the files have. Adapters, gradients and optimizer state are float32 (float64 under float64).",
                        {.aliases = {"torch_dtype"}}));
}

}  // namespace cotune::options
