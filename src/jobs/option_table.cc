#include "jobs/option_table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <type_traits>

#include "base/error.h"
#include "jobs/enum_names.h"
#include "jobs/found_chunk_size.h"
#include "jobs/parallel.h"

namespace cotune {

std::string_view section_name(Section section) {
  switch (section) {
    case Section::model: return "model";
    case Section::run: return "run";
    case Section::job: return "jobs[]";
    case Section::data: return "data";
    case Section::adapter: return "adapter";
    case Section::train: return "train";
    case Section::sweep: return "sweep";
    case Section::halving: return "halving";
  }
  return "";
}

std::string_view section_path(Section section) { return section == Section::halving ? "sweep.halving" : section_name(section); }

std::span<const Section> sections_in(Section section) {
  static constexpr Section of_job[] = {Section::data, Section::adapter, Section::train, Section::sweep};
  static constexpr Section of_sweep[] = {Section::halving};
  if (section == Section::job) return of_job;
  if (section == Section::sweep) return of_sweep;
  return {};
}

std::string Option::path() const {
  return section == Section::job ? key : fmt::format("{}.{}", section_path(section), key);
}

namespace {

constexpr double no_bound = std::numeric_limits<double>::infinity();
constexpr int64_t most_tokens = 1 << 20;
constexpr int64_t most_steps = 1'000'000'000;

Accepted of_type(OptionType type) { return {.type = type}; }
Accepted whole(int64_t low, int64_t high) {
  return {.type = OptionType::whole, .low = static_cast<double>(low), .high = static_cast<double>(high)};
}
Accepted whole_or_auto(int64_t low, int64_t high) {
  Accepted accepted = whole(low, high);
  accepted.may_be_auto = true;
  return accepted;
}
Accepted at_least(double low) { return {.type = OptionType::number, .low = low}; }
Accepted above(double low, double high = no_bound) {
  return {.type = OptionType::number, .low = low, .high = high, .low_open = true};
}
Accepted between(double low, double high) { return {.type = OptionType::number, .low = low, .high = high}; }
Accepted share_below_one() { return {.type = OptionType::number, .low = 0, .high = 1, .high_open = true}; }
using ChoiceAliases = std::vector<std::pair<std::string, std::string>>;
Accepted choice(std::vector<std::string> choices, ChoiceAliases aliases = {}) {
  return {.type = OptionType::choice, .choices = std::move(choices), .choice_aliases = std::move(aliases)};
}
Accepted device() {
  Accepted accepted = choice({"auto", "cpu", "cuda"});
  accepted.may_be_emulated = true;
  return accepted;
}
Accepted hub_name_or(OptionType type) { return {.type = type, .may_be_hub_name = true}; }
template <typename Enum>
Accepted choice_of(ChoiceAliases aliases = {}) {
  return choice({enum_names<Enum>.begin(), enum_names<Enum>.end()}, std::move(aliases));
}

struct Extra {
  std::vector<std::string> aliases = {};
  std::vector<std::string> root_aliases = {};
  std::string default_note = {};
  bool required = false;
  bool in_defaults = true;
  bool is_recorded = false;
  std::string group = {};
  std::string alternative = {};
  std::optional<Condition> condition = {};
};

Option describe(Section section, std::string key, Accepted accepted, std::string description, Extra extra) {
  Option option;
  option.section = section;
  option.key = std::move(key);
  option.accepted = std::move(accepted);
  option.description = std::move(description);
  option.aliases = std::move(extra.aliases);
  option.root_aliases = std::move(extra.root_aliases);
  option.default_note = std::move(extra.default_note);
  option.required = extra.required;
  option.in_defaults = extra.in_defaults;
  option.is_recorded = extra.is_recorded;
  option.group = std::move(extra.group);
  option.alternative = std::move(extra.alternative);
  option.condition = std::move(extra.condition);
  return option;
}

/// An option that is the field `access` returns a reference to.
template <typename Access>
Option field(Section section, std::string key, Access access, Accepted accepted, std::string description,
             Extra extra = {}) {
  using Field = std::remove_reference_t<decltype(access(OptionTarget{}))>;
  Option option = describe(section, std::move(key), std::move(accepted), std::move(description), std::move(extra));
  if constexpr (std::is_enum_v<Field>) {
    option.get = [access](const OptionTarget& target) -> OptionValue { return std::string(name_of(access(target))); };
    option.set = [access](const OptionTarget& target, const OptionValue& value) {
      const auto& names = enum_names<Field>;
      const auto found = std::find(names.begin(), names.end(), std::get<std::string>(value));
      COTUNE_CHECK(found != names.end());
      access(target) = static_cast<Field>(found - names.begin());
    };
  } else {
    option.get = [access](const OptionTarget& target) -> OptionValue { return access(target); };
    option.set = [access](const OptionTarget& target, const OptionValue& value) {
      access(target) = std::get<Field>(value);
    };
  }
  return option;
}

/// Another way to give a value: `neutral` changes nothing.
Option input_only(Section section, std::string key, OptionValue neutral,
                  std::function<void(const OptionTarget&, const OptionValue&)> set, Accepted accepted,
                  std::string description, Extra extra) {
  Option option = describe(section, std::move(key), std::move(accepted), std::move(description), std::move(extra));
  option.input_only = true;
  option.get = [neutral](const OptionTarget&) { return neutral; };
  option.set = std::move(set);
  return option;
}

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
          }};
}

/// An adapter that is there has its entries.
Condition chooses_entries() {
  const Condition method = method_is({AdapterMethod::diff_pruning});
  return {.holds = [method](const OptionTarget& target) { return method.holds(target) && target.job->adapter.init_from.empty(); },
          .summary = method.summary + ", without `init_from`",
          .complaint = [method](const std::string& key, const OptionTarget& target) {
            if (!method.holds(target)) return method.complaint(key, target);
            return fmt::format("`{}` has no effect beside init_from: the adapter that is there has its entries", key);
          }};
}

Condition optimizer_is(OptimizerKind kind) {
  return {.holds = [kind](const OptionTarget& target) { return target.job->train.optimizer == kind; },
          .summary = fmt::format("with optimizer {}", name_of(kind)),
          .complaint = [kind](const std::string& key, const OptionTarget& target) {
            return fmt::format("`{}` belongs to optimizer {}; this job's optimizer is {}", key, name_of(kind),
                               name_of(target.job->train.optimizer));
          }};
}

Condition several_ranks() {
  return {.holds = [](const OptionTarget& target) { return parallel_of(*target.run).ranks() > 1; },
          .summary = "with several ranks",
          .complaint = [](const std::string& key, const OptionTarget&) {
            return fmt::format("`{}` belongs to several ranks; run.ranks is 1", key);
          }};
}

Condition hybrid_sharing() {
  return {.holds = [](const OptionTarget& target) { return target.run->sharing == Sharing::hybrid; },
          .summary = "under sharing hybrid",
          .complaint = [](const std::string& key, const OptionTarget& target) {
            return fmt::format("`{}` belongs to sharing hybrid; run.sharing is {}", key, name_of(target.run->sharing));
          }};
}

Condition several_replicas() {
  return {.holds =
              [](const OptionTarget& target) {
                return parallel_of(*target.run).replicas.size() > 1 || (target.run->parallel == parallel_as_planned && target.run->ranks > 1);
              },
          .summary = "with several replicas",
          .complaint = [](const std::string& key, const OptionTarget& target) {
            return fmt::format("`{}` belongs to several replicas, such as run.parallel dp=2; run.parallel is {}", key, target.run->parallel);
          }};
}

Condition divided_layers() {
  return {.holds =
              [](const OptionTarget& target) {
                return parallel_of(*target.run).divides_layers() || (target.run->parallel == parallel_as_planned && target.run->ranks > 1);
              },
          .summary = "where ranks divide layers",
          .complaint = [](const std::string& key, const OptionTarget& target) {
            return fmt::format("`{}` belongs to ranks that divide layers, such as run.parallel tp=2; run.parallel is {}", key, target.run->parallel);
          }};
}

Condition needs_evaluation_data() {
  return {.holds = [](const OptionTarget& target) { return holds_out_examples(target.job->data); },
          .summary = "with `data.eval` or `data.eval_fraction`",
          .complaint = [](const std::string& key, const OptionTarget&) {
            return fmt::format("`{}` needs data.eval or data.eval_fraction; this job has neither", key);
          },
          .unset_is_fine = true};
}

Condition needs_eval_steps() {
  return {.holds = [](const OptionTarget& target) { return target.job->train.eval_steps > 0; },
          .summary = "with `train.eval_steps`",
          .complaint = [](const std::string& key, const OptionTarget&) {
            return fmt::format("`{}` needs train.eval_steps (and data.eval or data.eval_fraction)", key);
          },
          .unset_is_fine = true};
}

Condition needs_early_stopping() {
  return {.holds = [](const OptionTarget& target) { return target.job->train.early_stopping_patience > 0; },
          .summary = "with `train.early_stopping_patience`",
          .complaint = [](const std::string& key, const OptionTarget&) {
            return fmt::format("`{}` needs train.early_stopping_patience", key);
          },
          .unset_is_fine = true};
}

Condition defines_a_sweep() {
  return {.holds = [](const OptionTarget& target) { return target.job->sweep.of.empty(); },
          .summary = "of a sweep",
          .complaint = [](const std::string& key, const OptionTarget& target) {
            return fmt::format("`{}` belongs to a sweep; this job is a candidate of `{}`", key, target.job->sweep.of);
          },
          .unset_is_fine = true};
}

Condition is_candidate() {
  return {.holds = [](const OptionTarget& target) { return !target.job->sweep.of.empty(); },
          .summary = "of a candidate",
          .complaint = [](const std::string& key, const OptionTarget&) { return fmt::format("`{}` belongs to a candidate of a sweep, with `of`", key); },
          .unset_is_fine = true};
}

Condition halves() {
  return {.holds = [](const OptionTarget& target) { return target.job->sweep.halving.is_on(); },
          .summary = "with `first_steps` or `first_fraction`",
          .complaint = [](const std::string& key, const OptionTarget&) {
            return fmt::format("`{}` needs first_steps or first_fraction beside it", key);
          }};
}

Condition layout_is(Layout layout) {
  return {.holds = [layout](const OptionTarget& target) { return target.run->layout == layout; },
          .summary = fmt::format("layout {}", name_of(layout)),
          .complaint = [layout](const std::string& key, const OptionTarget& target) {
            return fmt::format("`{}` belongs to layout {}; this run's layout is {}", key, name_of(layout),
                               name_of(target.run->layout));
          }};
}

Condition keeps_data() {
  return {.holds = [](const OptionTarget& target) { return target.run->data_cache != "none"; },
          .summary = "unless `data_cache` is none",
          .complaint = [](const std::string& key, const OptionTarget&) {
            return fmt::format("`{}` bounds the folder of run.data_cache, which is none", key);
          }};
}

Condition random_weights() {
  return {.holds = [](const OptionTarget& target) { return target.model->weights == "random"; },
          .summary = "with weights random",
          .complaint = [](const std::string& key, const OptionTarget& target) {
            return fmt::format("`{}` belongs to weights random; this model's weights are {}", key,
                               target.model->weights);
          }};
}

/// `auto` is chunk_size_as_found.
Option chunk_size() {
  Option option = describe(Section::run, "chunk_size", whole_or_auto(1, most_tokens),
                           "Tokens of a chunk. `auto`: the greatest power of two that divides the longest row of every job that the run starts "
                           "with, at most `token_budget`, at least 64.",
                           {.condition = layout_is(Layout::chunked)});
  option.get = [](const OptionTarget& target) -> OptionValue {
    if (target.run->chunk_size == chunk_size_as_found) return std::string("auto");
    return target.run->chunk_size;
  };
  option.set = [](const OptionTarget& target, const OptionValue& value) {
    const auto* number = std::get_if<int64_t>(&value);
    target.run->chunk_size = number != nullptr ? *number : chunk_size_as_found;
  };
  return option;
}

#define COTUNE_FIELD(member) [](const OptionTarget& target) -> auto& { return target.member; }

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
  table.push_back(field(Section::model, "weights", COTUNE_FIELD(model->weights), choice({"file", "none", "random"}),
                        "`file`: those of `path`. With `config`: `random`, or `none` (for `cotune plan`, `cotune simulate` and an emulated device)."));
  table.push_back(field(Section::model, "seed", COTUNE_FIELD(model->seed), of_type(OptionType::seed),
                        "Seed of random weights.", {.condition = random_weights()}));
  table.push_back(field(Section::model, "dtype", COTUNE_FIELD(model->dtype),
                        choice({"auto", "float32", "bfloat16", "float64"},
                               {{"fp32", "float32"}, {"f32", "float32"}, {"bf16", "bfloat16"}, {"f64", "float64"}}),
                        "Compute type of the frozen model. Adapters, gradients and optimizer state are float32 (float64 under float64).",
                        {.aliases = {"torch_dtype"}}));
}

void add_run(std::vector<Option>& table) {
  table.push_back(field(Section::run, "output_dir", COTUNE_FIELD(run->output), of_type(OptionType::text),
                        "Folder for adapters, checkpoints and logs, relative to the working directory.",
                        {.aliases = {"output"}}));
  table.push_back(field(Section::run, "device", COTUNE_FIELD(run->device), device(),
                        "Where to compute; `auto` takes a CUDA GPU where one can be used (docs/gpu.md), the CPU elsewhere. `emulated:FILE` computes "
                        "nothing: operators take the time that a profile or a cluster file says (docs/ranks.md)."));
  table.push_back(field(Section::run, "memory", COTUNE_FIELD(run->memory), of_type(OptionType::memory),
                        "Most memory the run may take; `auto` is 80% of what is free at start."));
  table.push_back(field(Section::run, "token_budget", COTUNE_FIELD(run->token_budget), whole(256, most_tokens),
                        "Tokens of one microbatch; under sharing batch-all, of an evaluation's only. Changes speed and memory, not results (in "
                        "layout chunked their last bits, where chunk_size is no multiple of 64 and does not divide 256)."));
  table.push_back(field(Section::run, "threads", COTUNE_FIELD(run->threads), whole(0, 4096),
                        "Worker threads; 0: one per core."));
  table.push_back(field(Section::run, "ranks", COTUNE_FIELD(run->ranks), whole(1, most_ranks),
                        "Threads of the program that the model is divided among; each computes with its part of `threads` "
                        "(docs/ranks.md). Does not change what is trained."));
  table.push_back(field(Section::run, "parallel", COTUNE_FIELD(run->parallel), of_type(OptionType::parallel),
                        "How ranks divide the model: `pp=2,tp=2` are two stages of a pipeline, in each of which two ranks divide "
                        "every layer (tensor parallelism); `dp=2` are two replicas of the model, each of which trains a part of every "
                        "batch, `dp=2+tp=2` three of two shapes, `dp=2,len=512+tp=2` two of them for rows of at most 512 tokens. "
                        "`pp=2,vp=3`: each of two ranks has three stages. "
                        "`dp=2,shard`: the two replicas, where they are processes, keep half of the frozen weights each. `tp=2,seq`: the two ranks also divide the tokens between products (sequence parallelism). `stages`: each of `ranks` is a stage. `auto`: what the planner "
                        "predicts to be fastest on `ranks`. Degrees set `ranks` where that is not given."));
  table.push_back(field(Section::run, "pipeline_order", COTUNE_FIELD(run->pipeline_order), choice_of<RankOrder>(),
                        "How the ranks take turns; `auto` is what is predicted to be fastest, or interleaved 1F1B where ranks have several "
                        "stages (`vp`), beside which `gpipe` alone can be asked for. `split` is `auto` with steps of few jobs cut into more "
                        "microbatches, which `auto` does where that is predicted to be faster.",
                        {.condition = several_ranks()}));
  table.push_back(field(Section::run, "rounds_at_once", COTUNE_FIELD(run->rounds_at_once), whole(0, 1024),
                        "Rounds that follow each other without a flush of the pipeline; 0: those of about eight seconds, at most 16. Fewer where "
                        "something is due: an evaluation, a checkpoint, the end of a job. Losses are told, and signals and the control socket "
                        "answered, after them. Does not change results.",
                        {.condition = several_ranks()}));
  table.push_back(field(Section::run, "interleave", COTUNE_FIELD(run->interleave), choice_of<Interleave>(),
                        "Where ranks divide layers: compute another microbatch, or adapter gradients, while an all-reduce is under way. `always` "
                        "interleaves microbatches two by two, `auto` where that is predicted to be faster; `never` waits for every all-reduce. "
                        "Does not change results.",
                        {.condition = divided_layers()}));
  table.push_back(field(Section::run, "dispatch", COTUNE_FIELD(run->dispatch), choice_of<DispatchRule>(),
                        "Which replica gets which rows of a round: `balanced`, so that the slowest one is done soonest; `greedy`, each "
                        "length to the replicas that are cheapest for it; `even`, as many to each.",
                        {.condition = several_replicas()}));
  table.push_back(field(Section::run, "length_buckets", COTUNE_FIELD(run->length_buckets), choice_of<LengthBucketing>(),
                        "Borders of the up to 16 length buckets that rows are dealt by: `dynamic`, the best of every round; `fixed`, the best of "
                        "all jobs' data, for all rounds until a job joins. Beside fixed ones the longest row of each replica is one.",
                        {.condition = several_replicas()}));
  table.push_back(field(Section::run, "sharing", COTUNE_FIELD(run->sharing), choice_of<Sharing>(),
                        "How jobs share the model: one after another, interleaved, all fused, or as planned."));
  table.push_back(field(Section::run, "fusion", COTUNE_FIELD(run->fusion), choice_of<TaskFusion>(),
                        "Which jobs share microbatches: those that are `predicted` to make a round shortest, or as many groups of about equal "
                        "tokens as a pipeline has `stages`, and each job by itself where there are no more (mLoRA).",
                        {.condition = hybrid_sharing()}));
  table.push_back(field(Section::run, "layout", COTUNE_FIELD(run->layout), choice_of<Layout>(),
                        "How rows of different length stand in a microbatch."));
  table.push_back(chunk_size());
  table.push_back(field(Section::run, "recompute", COTUNE_FIELD(run->recompute), choice_of<Recompute>(),
                        "Compute activations again in the backward pass instead of keeping them."));
  table.push_back(field(Section::run, "stay", COTUNE_FIELD(run->stay), of_type(OptionType::boolean),
                        "When every job has ended, wait for further ones (`cotune job add`) until drained or stopped "
                        "(docs/control.md)."));
  table.push_back(field(Section::run, "tensorboard", COTUNE_FIELD(run->tensorboard), of_type(OptionType::boolean),
                        "Write event files that TensorBoard opens, below `tensorboard/` in the output folder (docs/watching.md)."));
  table.push_back(field(Section::run, "data_cache", COTUNE_FIELD(run->data_cache), of_type(OptionType::text),
                        "Folder where tokenized data are kept, and found by the next run (docs/data-formats.md), relative to the working directory; "
                        "`auto` is `$XDG_CACHE_HOME/cotune/data`, or `~/.cache/cotune/data`; `none`: data are tokenized at every start and held in memory."));
  table.push_back(field(Section::run, "data_cache_gib", COTUNE_FIELD(run->data_cache_gib), whole(1, 1'000'000),
                        "GiB that the folder may hold before what was not used for longest is removed from it.", {.condition = keeps_data()}));
  table.push_back(field(Section::run, "portable_kernels", COTUNE_FIELD(run->portable_kernels),
                        of_type(OptionType::boolean), "Do without the kernels made for this CPU or GPU."));
}

void add_job(std::vector<Option>& table) {
  table.push_back(field(Section::job, "name", COTUNE_FIELD(job->name), of_type(OptionType::identifier),
                        "Unique in the file: the name of the job's output folder. Not `base`, which is the model without an adapter.",
                        {.required = true, .in_defaults = false}));
  table.push_back(field(Section::job, "tenant", COTUNE_FIELD(job->tenant), of_type(OptionType::identifier),
                        "Whose job it is; for schedulers, training does not look at it."));
  table.push_back(field(Section::job, "priority", COTUNE_FIELD(job->priority), whole(-1'000'000, 1'000'000),
                        "Higher goes first when not all jobs fit into memory, and takes the place of a running job of lower priority."));
  table.push_back(field(Section::job, "deadline", COTUNE_FIELD(job->deadline), of_type(OptionType::time),
                        "When it should be done; UTC where it names no zone, and the end of the day where it is a date. Of "
                        "jobs of equal priority the earliest goes first, and a miss is reported."));
}

void add_data(std::vector<Option>& table) {
  table.push_back(field(Section::data, "train", COTUNE_FIELD(job->data.train), {.type = OptionType::files, .low = 0, .high = 1e9, .low_open = true},
                        "File of training examples: JSONL, also compressed, or Parquet. Several as a list, `[a.jsonl, b.jsonl]`, or with their "
                        "shares of an epoch: `[{path: a.jsonl, weight: 3}, {path: b.jsonl, weight: 1}]`.",
                        {.required = true, .group = "examples", .alternative = "train"}));
  table.push_back(field(Section::data, "lengths", COTUNE_FIELD(job->data.lengths),
                        {.type = OptionType::lengths, .low = 1, .high = double(most_tokens)},
                        "Example lengths in tokens in place of data, for `cotune plan`, `cotune simulate` and an emulated device.",
                        {.group = "examples", .alternative = "lengths"}));
  table.push_back(field(Section::data, "eval", COTUNE_FIELD(job->data.eval), of_type(OptionType::path),
                        "File of held-out examples.", {.group = "evaluation", .alternative = "eval"}));
  table.push_back(field(Section::data, "eval_fraction", COTUNE_FIELD(job->data.eval_fraction), between(0, 0.5),
                        "Share of `train` to hold out, chosen by a hash of each example's text, whatever the seed.",
                        {.aliases = {"val_set_size"}, .group = "evaluation", .alternative = "eval_fraction"}));
  table.push_back(field(Section::data, "format", COTUNE_FIELD(job->data.format),
                        choice_of<DataFormat>({{"chat", "messages"}}),
                        "What every record holds (docs/data-formats.md); `auto`: what each file's first one does."));
  table.push_back(field(Section::data, "chat_template", COTUNE_FIELD(job->data.chat_template),
                        of_type(OptionType::path), "File with a Jinja template in place of the model's own."));
  table.push_back(field(Section::data, "max_length", COTUNE_FIELD(job->data.max_length), whole(0, most_tokens),
                        "Tokens per example; 0: the model's context length.",
                        {.aliases = {"sequence_len", "max_seq_length", "cutoff_len"}}));
  table.push_back(field(Section::data, "truncation", COTUNE_FIELD(job->data.truncation), choice_of<Truncation>(),
                        "What happens to longer examples: cut the right or left end, drop them, or stop."));
  table.push_back(field(Section::data, "train_on_prompt", COTUNE_FIELD(job->data.train_on_prompt),
                        of_type(OptionType::boolean), "Learn the prompt's tokens too.",
                        {.aliases = {"train_on_inputs"}}));
  table.push_back(field(Section::data, "max_examples", COTUNE_FIELD(job->data.max_examples), whole(0, most_steps),
                        "Take only the first so many examples of each file of `train`; 0: all."));
}

void add_adapter(std::vector<Option>& table) {
  using enum AdapterMethod;
  const Accepted modules = of_type(OptionType::modules);
  table.push_back(field(Section::adapter, "method", COTUNE_FIELD(job->adapter.method),
                        choice_of<AdapterMethod>({{"LORA", "lora"}}), "The kind of adapter.",
                        {.aliases = {"peft_type"}}));
  table.push_back(field(Section::adapter, "init_from", COTUNE_FIELD(job->adapter.init_from),
                        hub_name_or(OptionType::path),
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
                        {.aliases = {"lora_layers_to_transform"}, .default_note = "every layer"}));
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
                        {.aliases = {"max_steps"}, .default_note = "by `epochs`", .group = "length",
                         .alternative = "steps"}));
  table.push_back(field(Section::train, "epochs", COTUNE_FIELD(job->train.epochs), above(0, 1e6),
                        "Passes over the data, in place of `steps`.",
                        {.aliases = {"num_epochs", "num_train_epochs"}, .default_note = "1, without `steps`",
                         .group = "length", .alternative = "epochs"}));
  table.push_back(field(Section::train, "optimizer", COTUNE_FIELD(job->train.optimizer),
                        choice_of<OptimizerKind>({{"adamw_torch", "adamw"}}), "The optimizer.",
                        {.aliases = {"optim"}}));
  table.push_back(field(Section::train, "learning_rate", COTUNE_FIELD(job->train.learning_rate), above(0),
                        "Peak learning rate.", {.aliases = {"lr"}}));
  table.push_back(field(Section::train, "weight_decay", COTUNE_FIELD(job->train.weight_decay), at_least(0),
                        "Weight decay, decoupled in adamw."));
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
                        "Course of the learning rate after warm-up.", {.aliases = {"lr_scheduler_type"}}));
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

void add_sweep(std::vector<Option>& table) {
  const auto own = [](std::optional<Condition> condition = {}, std::string group = {}, std::string alternative = {}) {
    return Extra{.in_defaults = false, .group = std::move(group), .alternative = std::move(alternative), .condition = std::move(condition)};
  };
  const auto recorded = [&](std::optional<Condition> condition = {}) {
    Extra extra = own(std::move(condition));
    extra.is_recorded = true;
    return extra;
  };
  table.push_back(field(Section::sweep, "of", COTUNE_FIELD(job->sweep.of), of_type(OptionType::identifier),
                        "The sweep whose candidate the job is: cotune writes it into the configuration of a run.", recorded()));
  table.push_back(field(Section::sweep, "values", COTUNE_FIELD(job->sweep.values), of_type(OptionType::swept_values),
                        "What the sweep has set in this candidate.", recorded(is_candidate())));
  table.push_back(field(Section::sweep, "grid", COTUNE_FIELD(job->sweep.grid), of_type(OptionType::grid),
                        "Options of the job, each with the values to try: `{adapter.r: [4, 8], train.lr: [1e-4, 3e-4]}`; every combination "
                        "is a candidate. Values that belong together are maps of a section: `adapter: [{r: 4, alpha: 8}, {r: 8, alpha: 16}]`.",
                        own(defines_a_sweep())));
  table.push_back(field(Section::sweep, "random", COTUNE_FIELD(job->sweep.random), of_type(OptionType::distributions),
                        "Options of the job, each with a list to choose from or a range: `{uniform: [0, 0.1]}`, also with `step`, or "
                        "`{log_uniform: [1e-5, 1e-3]}`.",
                        own(defines_a_sweep())));
  table.push_back(field(Section::sweep, "samples", COTUNE_FIELD(job->sweep.samples), whole(0, 10'000),
                        "How often to draw from `random`; each draw is combined with every combination of the grid.", own(defines_a_sweep())));
  table.push_back(field(Section::sweep, "seed", COTUNE_FIELD(job->sweep.seed), of_type(OptionType::seed), "Seed of the draws.",
                        own(defines_a_sweep())));
  table.push_back(field(Section::sweep, "metric", COTUNE_FIELD(job->sweep.metric), choice_of<SweepMetric>(),
                        "What candidates are compared by: the held-out loss, or the share of held-out rows with every token predicted, and "
                        "of equal shares the loss.",
                        own()));
  table.push_back(field(Section::sweep, "max_concurrent", COTUNE_FIELD(job->sweep.max_concurrent), whole(0, 10'000),
                        "Most candidates that train at a time; 0: as many as memory takes.", own()));
  table.push_back(field(Section::halving, "first_steps", COTUNE_FIELD(job->sweep.halving.first_steps), whole(1, most_steps),
                        "Steps after which candidates are compared first; then at `factor` times as many, and so on.",
                        own({}, "first rung", "first_steps")));
  table.push_back(field(Section::halving, "first_fraction", COTUNE_FIELD(job->sweep.halving.first_fraction), above(0, 1),
                        "The same as a share of each candidate's own steps.", own({}, "first rung", "first_fraction")));
  table.push_back(field(Section::halving, "factor", COTUNE_FIELD(job->sweep.halving.factor), whole(2, 1000),
                        "The best 1/factor of those that came to a rung go on.", own(halves())));
  table.push_back(field(Section::halving, "mode", COTUNE_FIELD(job->sweep.halving.mode), choice_of<HalvingMode>(),
                        "`asynchronous`: a candidate is judged when it comes to a rung, against those that have been there. `synchronous`: it "
                        "waits there, out of memory, for all others.",
                        own(halves())));
}

#undef COTUNE_FIELD

}  // namespace

const std::vector<Option>& option_table() {
  static const std::vector<Option> table = [] {
    std::vector<Option> options;
    add_model(options);
    add_run(options);
    add_job(options);
    add_data(options);
    add_adapter(options);
    add_train(options);
    add_sweep(options);
    return options;
  }();
  return table;
}

const Option* find_option(Section section, std::string_view name) {
  for (const Option& option : option_table()) {
    if (option.section != section) continue;
    if (option.key == name || std::count(option.aliases.begin(), option.aliases.end(), name)) return &option;
  }
  return nullptr;
}

OptionValue default_value(const Option& option) {
  ModelSpec model;
  RunSpec run;
  JobSpec job;
  return option.get({&model, &run, &job});
}

bool is_unset(const OptionValue& value) {
  return std::visit(
      [](const auto& held) {
        using Held = std::decay_t<decltype(held)>;
        if constexpr (std::is_arithmetic_v<Held>) {
          return held == Held{};
        } else {
          return held.empty();
        }
      },
      value);
}

}  // namespace cotune
