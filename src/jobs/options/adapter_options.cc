#include "jobs/options/sections.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "jobs/options/option_entry.h"

namespace cotune::options {
namespace {

Condition method_is(std::vector<AdapterMethod> methods) {
  std::vector<std::string_view> names;
  for (AdapterMethod method : methods) names.push_back(name_of(method));
  const std::string kinds = fmt::format("method {}", fmt::join(names, " or "));
  return {.holds = [methods](const OptionTarget& target) {
            return std::find(methods.begin(), methods.end(), target.job->adapter.method) != methods.end();
          },
          .summary = "with " + kinds,
          .complaint = [kinds](const std::string& key, const OptionTarget& target) {
            return fmt::format("`{}` belongs to {}; this job's method is {}", key, kinds,
                               name_of(target.job->adapter.method));
          },
          .reads = {"adapter.method"}};
}

/// An adapter that is there has its entries.
Condition chooses_entries() {
  const Condition method = method_is({AdapterMethod::diff_pruning});
  return {.holds = [method](const OptionTarget& target) { return method.holds(target) && target.job->adapter.init_from.empty(); },
          .summary = method.summary + ", without `init_from`",
          .complaint = [method](const std::string& key, const OptionTarget& target) {
            if (!method.holds(target)) return method.complaint(key, target);
            return fmt::format("`{}` has no effect beside init_from: the adapter that is there has its entries", key);
          },
          .reads = {"adapter.method"}};
}

}  // namespace

void add_adapter(std::vector<Option>& table) {
  using enum AdapterMethod;
  const Accepted modules = of_type(OptionType::modules);
  table.push_back(field(Section::adapter, "method", COTUNE_FIELD(job->adapter.method),
                        choice_of<AdapterMethod>({{"LORA", "lora"}}), "The kind of adapter.",
                        {.aliases = {"peft_type"}}));
  table.push_back(
      field(Section::adapter, "init_from", COTUNE_FIELD(job->adapter.init_from), hub_name_or(OptionType::path),
            "Existing adapter to start from: its folder, the folder of a job of an earlier run, or its name in the Hugging Face cache. It must "
            "have the job's modules, ranks, alphas and density.",
            {.aliases = {"lora_model_dir"}}));
  table.push_back(field(Section::adapter, "target_modules", COTUNE_FIELD(job->adapter.target_modules), modules,
                        "The projections to adapt: names, `all-linear`, or one regular expression.",
                        {.aliases = {"lora_target_modules"},
                         .default_note = "q_proj, v_proj; diff_pruning: all-linear",
                         .group = "targets",
                         .alternative = "target_modules",
                         .condition = method_is({lora, diff_pruning})}));
  table.push_back(input_only(
      Section::adapter, "lora_target_linear", false,
      [](const OptionTarget& target, const OptionValue& value) {
        if (std::get<bool>(value)) target.job->adapter.target_modules = {"all-linear"};
      },
      of_type(OptionType::boolean), "axolotl's way to write `target_modules: all-linear`.",
      {.group = "targets", .alternative = "lora_target_linear", .condition = method_is({lora, diff_pruning})}));
  table.push_back(field(Section::adapter, "exclude_modules", COTUNE_FIELD(job->adapter.exclude_modules), modules,
                        "Names or one regular expression of projections to leave out.",
                        {.condition = method_is({lora, diff_pruning})}));
  table.push_back(field(Section::adapter, "layers_to_transform", COTUNE_FIELD(job->adapter.layers_to_transform),
                        {.type = OptionType::wholes, .low = 0, .high = 9999},
                        "Adapt only these layers, or this one, counted from 0.",
                        {.aliases = {"lora_layers_to_transform", "peft_layers_to_transform"}, .default_note = "every layer"}));
  table.push_back(field(Section::adapter, "r", COTUNE_FIELD(job->adapter.r), whole(1, 512), "Rank.",
                        {.aliases = {"lora_r", "rank"}, .condition = method_is({lora})}));
  table.push_back(field(Section::adapter, "alpha", COTUNE_FIELD(job->adapter.alpha), above(0),
                        "Scale: the update is multiplied by alpha/r.",
                        {.aliases = {"lora_alpha"}, .condition = method_is({lora})}));
  table.push_back(field(Section::adapter, "dropout", COTUNE_FIELD(job->adapter.dropout), share_below_one(),
                        "Share of the adapter's inputs dropped in training.",
                        {.aliases = {"lora_dropout"}, .condition = method_is({lora})}));
  table.push_back(field(Section::adapter, "use_rslora", COTUNE_FIELD(job->adapter.use_rslora),
                        of_type(OptionType::boolean), "Scale by alpha/sqrt(r) instead (rsLoRA).",
                        {.aliases = {"peft_use_rslora"}, .condition = method_is({lora})}));
  table.push_back(field(Section::adapter, "lora_plus_ratio", COTUNE_FIELD(job->adapter.lora_plus_ratio), above(0),
                        "Learning rate of B over that of A (LoRA+).",
                        {.aliases = {"loraplus_lr_ratio"}, .condition = method_is({lora})}));
  table.push_back(field(Section::adapter, "rank_pattern", COTUNE_FIELD(job->adapter.rank_pattern),
                        {.type = OptionType::whole_by_module, .low = 1, .high = 512},
                        "Ranks of single modules: regular expression on the module's name → rank; the first match counts.",
                        {.condition = method_is({lora})}));
  table.push_back(field(Section::adapter, "alpha_pattern", COTUNE_FIELD(job->adapter.alpha_pattern),
                        {.type = OptionType::number_by_module, .low = 0, .low_open = true},
                        "The same for alpha.", {.condition = method_is({lora})}));
  const auto as_it_is = [](const OptionTarget&, const OptionValue&) {};
  table.push_back(input_only(Section::adapter, "bias", std::string("none"), as_it_is, choice({"none"}), "PEFT's: biases are not trained.",
                             {.condition = method_is({lora})}));
  table.push_back(input_only(Section::adapter, "task_type", std::string("CAUSAL_LM"), as_it_is, choice({"CAUSAL_LM"}),
                             "PEFT's: models continue texts.", {}));
  table.push_back(field(Section::adapter, "bottleneck_size", COTUNE_FIELD(job->adapter.bottleneck_size),
                        whole(1, 4096), "Width of the bottleneck.", {.condition = method_is({bottleneck})}));
  table.push_back(field(Section::adapter, "activation", COTUNE_FIELD(job->adapter.activation),
                        choice_of<Activation>({{"swish", "silu"}}), "Non-linearity of the bottleneck.",
                        {.aliases = {"non_linearity"}, .condition = method_is({bottleneck})}));
  table.push_back(field(Section::adapter, "density", COTUNE_FIELD(job->adapter.density), above(0, 1),
                        "Share of every target weight that is trained.", {.condition = method_is({diff_pruning})}));
  table.push_back(field(Section::adapter, "selection_batches", COTUNE_FIELD(job->adapter.selection_batches),
                        whole(1, 10000), "Batches whose gradients are added up: the entries of the largest magnitudes are trained.",
                        {.condition = chooses_entries()}));
}

}  // namespace cotune::options
