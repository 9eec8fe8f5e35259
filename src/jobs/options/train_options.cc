#include "jobs/options/sections.h"

#include <fmt/format.h>

#include "jobs/options/option_entry.h"

namespace cotune::options {
namespace {

Condition optimizer_is(OptimizerKind kind) {
  return {.holds = [kind](const OptionTarget& target) { return target.job->train.optimizer == kind; },
          .summary = fmt::format("with optimizer {}", name_of(kind)),
          .complaint = [kind](const std::string& key, const OptionTarget& target) {
            return fmt::format("`{}` belongs to optimizer {}; this job's optimizer is {}", key, name_of(kind),
                               name_of(target.job->train.optimizer));
          },
          .reads = {"train.optimizer"}};
}

Condition needs_evaluation_data() {
  return {.holds = [](const OptionTarget& target) { return holds_out_examples(target.job->data); },
          .summary = "with `data.eval` or `data.eval_fraction`",
          .complaint = [](const std::string& key, const OptionTarget&) {
            return fmt::format("`{}` needs data.eval or data.eval_fraction; this job has neither", key);
          },
          .reads = {"data.eval", "data.eval_fraction"},
          .unset_is_fine = true};
}

Condition needs_eval_steps() {
  return {.holds = [](const OptionTarget& target) { return target.job->train.eval_steps > 0; },
          .summary = "with `train.eval_steps`",
          .complaint = [](const std::string& key, const OptionTarget&) {
            return fmt::format("`{}` needs train.eval_steps (and data.eval or data.eval_fraction)", key);
          },
          .reads = {"train.eval_steps"},
          .unset_is_fine = true};
}

Condition needs_early_stopping() {
  return {.holds = [](const OptionTarget& target) { return target.job->train.early_stopping_patience > 0; },
          .summary = "with `train.early_stopping_patience`",
          .complaint = [](const std::string& key, const OptionTarget&) {
            return fmt::format("`{}` needs train.early_stopping_patience", key);
          },
          .reads = {"train.early_stopping_patience"},
          .unset_is_fine = true};
}

}  // namespace

void add_train(std::vector<Option>& table) {
  table.push_back(field(Section::train, "batch_size", COTUNE_FIELD(job->train.batch_size), whole(1, 65536),
                        "Examples per optimizer step.", {.group = "batch", .alternative = "batch_size"}));
  table.push_back(input_only(
      Section::train, "micro_batch_size", int64_t{0},
      [](const OptionTarget& target, const OptionValue& value) {
        target.job->train.batch_size = std::get<int64_t>(value);
      },
      whole(1, 65536),
      "With `gradient_accumulation_steps`, another way to give `batch_size`: their product. "
      "Microbatches are cut by `run.token_budget`, not by this.",
      {.aliases = {"per_device_train_batch_size"}, .group = "batch", .alternative = "micro_batch_size"}));
  table.push_back(input_only(
      Section::train, "gradient_accumulation_steps", int64_t{0},
      [](const OptionTarget& target, const OptionValue& value) {
        target.job->train.batch_size *= std::get<int64_t>(value);
      },
      whole(1, 65536), "See `micro_batch_size`.", {.group = "batch", .alternative = "micro_batch_size"}));
  table.push_back(field(Section::train, "steps", COTUNE_FIELD(job->train.steps), whole(1, most_steps),
                        "Optimizer steps.",
                        {.default_note = "by `epochs`", .group = "length", .alternative = "steps"}));
  table.push_back(input_only(
      Section::train, "max_steps", int64_t{-1},
      [](const OptionTarget& target, const OptionValue& value) { target.job->train.steps = std::get<int64_t>(value); },
      whole(-1, most_steps), "The same under Transformers' name, where -1 leaves it to `epochs`.", {.group = "length", .alternative = "steps"}));
  table.push_back(field(Section::train, "epochs", COTUNE_FIELD(job->train.epochs), above(0, 1e6),
                        "Passes over the data, in place of `steps`.",
                        {.aliases = {"num_epochs", "num_train_epochs"}, .default_note = "1, without `steps`",
                         .group = "length", .alternative = "epochs"}));
  table.push_back(field(Section::train, "optimizer", COTUNE_FIELD(job->train.optimizer),
                        choice_of<OptimizerKind>({{"adamw_torch", "adamw"}, {"adamw_torch_fused", "adamw"}, {"adamw_hf", "adamw"}}), "The optimizer.",
                        {.aliases = {"optim"}}));
  table.push_back(field(Section::train, "learning_rate", COTUNE_FIELD(job->train.learning_rate), above(0),
                        "Peak learning rate.", {.aliases = {"lr"}}));
  table.push_back(field(Section::train, "weight_decay", COTUNE_FIELD(job->train.weight_decay), at_least(0),
                        "Weight decay, decoupled in adamw; biases of bottleneck adapters have none."));
  table.push_back(field(Section::train, "beta1", COTUNE_FIELD(job->train.beta1), share_below_one(),
                        "Decay of the first moment.",
                        {.aliases = {"adam_beta1"}, .condition = optimizer_is(OptimizerKind::adamw)}));
  table.push_back(field(Section::train, "beta2", COTUNE_FIELD(job->train.beta2), share_below_one(),
                        "Decay of the second moment.",
                        {.aliases = {"adam_beta2"}, .condition = optimizer_is(OptimizerKind::adamw)}));
  table.push_back(field(Section::train, "epsilon", COTUNE_FIELD(job->train.epsilon), above(0),
                        "Added to the root of the second moment.",
                        {.aliases = {"adam_epsilon"}, .condition = optimizer_is(OptimizerKind::adamw)}));
  table.push_back(field(Section::train, "momentum", COTUNE_FIELD(job->train.momentum), share_below_one(), "Momentum.",
                        {.condition = optimizer_is(OptimizerKind::sgd)}));
  table.push_back(field(Section::train, "lr_scheduler", COTUNE_FIELD(job->train.schedule),
                        choice_of<ScheduleKind>({{"constant_with_warmup", "constant"}}),
                        "Course of the learning rate after warm-up. "
                        "`constant` has the warm-up, too; transformers' `constant` leaves it out.", {.aliases = {"lr_scheduler_type"}}));
  table.push_back(field(Section::train, "warmup_steps", COTUNE_FIELD(job->train.warmup_steps), whole(0, most_steps),
                        "Steps over which the learning rate rises from 0.",
                        {.group = "warm-up", .alternative = "warmup_steps"}));
  table.push_back(field(Section::train, "warmup_ratio", COTUNE_FIELD(job->train.warmup_ratio), between(0, 1),
                        "The same as a share of all steps.", {.group = "warm-up", .alternative = "warmup_ratio"}));
  table.push_back(field(Section::train, "max_grad_norm", COTUNE_FIELD(job->train.max_grad_norm), at_least(0),
                        "Clip the job's gradient to this norm; 0: never."));
  table.push_back(field(Section::train, "seed", COTUNE_FIELD(job->train.seed), of_type(OptionType::seed),
                        "Seed of initial weights, order of the data and dropout."));
  table.push_back(field(Section::train, "shuffle", COTUNE_FIELD(job->train.shuffle), choice_of<Shuffle>(),
                        "A new order every epoch, or the file's."));
  table.push_back(field(Section::train, "eval_steps", COTUNE_FIELD(job->train.eval_steps), whole(0, most_steps),
                        "Evaluate every so many steps; 0: only before and after.",
                        {.condition = needs_evaluation_data()}));
  table.push_back(field(Section::train, "early_stopping_patience", COTUNE_FIELD(job->train.early_stopping_patience),
                        whole(0, most_steps), "Stop after so many evaluations without improvement; 0: never.",
                        {.condition = needs_eval_steps()}));
  table.push_back(field(Section::train, "early_stopping_threshold",
                        COTUNE_FIELD(job->train.early_stopping_threshold), at_least(0),
                        "How much lower a loss must be to count as an improvement.",
                        {.condition = needs_early_stopping()}));
  table.push_back(field(Section::train, "load_best_model_at_end", COTUNE_FIELD(job->train.load_best),
                        of_type(OptionType::boolean), "Leave the checkpoint with the lowest held-out loss.",
                        {.aliases = {"load_best"}, .condition = needs_evaluation_data()}));
  table.push_back(field(Section::train, "save_steps", COTUNE_FIELD(job->train.save_steps), whole(0, most_steps),
                        "Checkpoint every so many steps; 0: at the end and on signals."));
}

}  // namespace cotune::options
