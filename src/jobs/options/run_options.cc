#include "jobs/options/sections.h"

#include <fmt/format.h>

#include "jobs/found_chunk_size.h"
#include "jobs/options/option_entry.h"
#include "jobs/parallel.h"

namespace cotune::options {
namespace {

Accepted whole_or_auto(int64_t low, int64_t high) {
  Accepted accepted = whole(low, high);
  accepted.may_be_auto = true;
  return accepted;
}

Accepted device() {
  Accepted accepted = choice({"auto", "cpu", "cuda"});
  accepted.may_be_emulated = true;
  return accepted;
}

Condition several_ranks() {
  return {.holds = [](const OptionTarget& target) { return parallel_of(*target.run).ranks() > 1; },
          .summary = "with several ranks",
          .complaint = [](const std::string& key, const OptionTarget&) {
            return fmt::format("`{}` belongs to several ranks; run.ranks is 1; with --plan, too, run.ranks or run.parallel says that there are more",
                               key);
          },
          .reads = {"run.ranks", "run.parallel"}};
}

Condition hybrid_sharing() {
  return {.holds = [](const OptionTarget& target) { return target.run->sharing == Sharing::hybrid; },
          .summary = "under sharing hybrid",
          .complaint = [](const std::string& key, const OptionTarget& target) {
            return fmt::format("`{}` belongs to sharing hybrid; run.sharing is {}", key, name_of(target.run->sharing));
          },
          .reads = {"run.sharing"}};
}

Condition several_replicas() {
  return {.holds =
              [](const OptionTarget& target) {
                return parallel_of(*target.run).replicas.size() > 1 || (target.run->parallel == parallel_as_planned && target.run->ranks > 1);
              },
          .summary = "with several replicas",
          .complaint = [](const std::string& key, const OptionTarget& target) {
            return fmt::format("`{}` belongs to several replicas, such as run.parallel dp=2; run.parallel is {}", key, target.run->parallel);
          },
          .reads = {"run.ranks", "run.parallel"}};
}

Condition divided_layers() {
  return {.holds =
              [](const OptionTarget& target) {
                return parallel_of(*target.run).divides_layers() || (target.run->parallel == parallel_as_planned && target.run->ranks > 1);
              },
          .summary = "where ranks divide layers",
          .complaint = [](const std::string& key, const OptionTarget& target) {
            return fmt::format("`{}` belongs to ranks that divide layers, such as run.parallel tp=2; run.parallel is {}", key, target.run->parallel);
          },
          .reads = {"run.ranks", "run.parallel"}};
}

Condition layout_is(Layout layout) {
  return {.holds = [layout](const OptionTarget& target) { return target.run->layout == layout; },
          .summary = fmt::format("layout {}", name_of(layout)),
          .complaint = [layout](const std::string& key, const OptionTarget& target) {
            return fmt::format("`{}` belongs to layout {}; this run's layout is {}", key, name_of(layout),
                               name_of(target.run->layout));
          },
          .reads = {"run.layout"}};
}

Condition keeps_data() {
  return {.holds = [](const OptionTarget& target) { return target.run->data_cache != "none"; },
          .summary = "unless `data_cache` is none",
          .complaint = [](const std::string& key, const OptionTarget&) {
            return fmt::format("`{}` bounds the folder of run.data_cache, which is none", key);
          },
          .reads = {"run.data_cache"}};
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

}  // namespace

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
                        "Worker threads; 0: one per core. At most eight for each core that the program may use compute."));
  table.push_back(field(Section::run, "ranks", COTUNE_FIELD(run->ranks), whole(1, most_ranks),
                        "Threads of the program that the model is divided among; each computes with its part of `threads` "
                        "(docs/ranks.md). Does not change what is trained."));
  table.push_back(
      field(Section::run, "parallel", COTUNE_FIELD(run->parallel), of_type(OptionType::parallel),
            "How ranks divide the model: `pp=2,tp=2` are two stages of a pipeline, in each of which two ranks divide "
            "every layer (tensor parallelism); `dp=2` are two replicas of the model, each of which trains a part of every "
            "batch, `dp=2+tp=2` three of two shapes, `dp=2,len=512+tp=2` two of them for rows of at most 512 tokens. "
            "`pp=2,vp=3`: each of two ranks has three stages. "
            "`dp=2,shard`: the two replicas, where they are processes, keep half of the frozen weights each. `tp=2,seq`: the two ranks also divide "
            "the tokens between products (sequence parallelism). `stages`: each of `ranks` is a stage. `auto`: what the planner "
            "predicts to be fastest on `ranks`. Degrees set `ranks` where that is not given."));
  table.push_back(field(Section::run, "pipeline_order", COTUNE_FIELD(run->pipeline_order), choice_of<RankOrder>(),
                        "How the ranks take turns; `auto` is what is predicted to be fastest, or interleaved 1F1B where ranks have several "
                        "stages (`vp`), beside which `gpipe` and `split` can be asked for. `split` is `auto` with steps of few jobs cut into more "
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
  table.push_back(
      field(Section::run, "data_cache", COTUNE_FIELD(run->data_cache), of_type(OptionType::text),
            "Folder where tokenized data are kept, and found by the next run (docs/data-formats.md), relative to the working directory; "
            "`auto` is `$XDG_CACHE_HOME/cotune/data`, or `~/.cache/cotune/data`; `none`: data are tokenized at every start and held in memory."));
  table.push_back(field(Section::run, "data_cache_gib", COTUNE_FIELD(run->data_cache_gib), whole(1, 1'000'000),
                        "GiB that the folder may hold before what was not used for longest is removed from it.", {.condition = keeps_data()}));
  table.push_back(field(Section::run, "portable_kernels", COTUNE_FIELD(run->portable_kernels),
                        of_type(OptionType::boolean), "Do without the kernels made for this CPU or GPU."));
}

}  // namespace cotune::options
