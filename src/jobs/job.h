/// What a user asks for: one fine-tuning request and the run around it, as read from jobs.yaml. Plain values; reading
/// and checking them is jobs_file.h. Train, plan, simulate, control and the service share these types.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "jobs/sweep.h"

namespace cotune {

enum class AdapterMethod { lora, bottleneck, diff_pruning };
enum class Activation { relu, gelu, silu, tanh };
enum class OptimizerKind { adamw, sgd };
enum class ScheduleKind { constant, linear, cosine };
enum class DataFormat { automatic, messages, sharegpt, completion, alpaca, text, tokens };
enum class Truncation { right, left, drop, error };
/// What the texts of special tokens are in texts of the data (data/example_builder.h).
enum class SpecialTokens { plain, parsed };
enum class Shuffle { epoch, none };

/// Where the base model is. `path`: a Hugging Face folder or a GGUF file. `config` with `weights` none or random:
/// a shape without a checkpoint (presets and config.json files), for plan and simulate and for tests.
struct ModelSpec {
  std::string path;
  std::string config;
  std::string weights = "file";  ///< file | none | random
  uint64_t seed = 0;             ///< of random weights
  std::string dtype = "auto";    ///< auto | float32 | bfloat16 | float64: compute dtype
  bool operator==(const ModelSpec&) const = default;
};

/// Regular expression on a module's name → value, in the order of the file: the first that matches counts.
template <typename T>
using ModulePattern = std::vector<std::pair<std::string, T>>;

/// Example lengths in tokens in place of data, for plan, simulate and emulated devices. One of the two is set, or neither.
struct LengthsSpec {
  std::string histogram;  ///< name of a published data set's lengths, or a JSON file {"LENGTH": COUNT}
  std::vector<std::pair<int64_t, int64_t>> counts;  ///< (length, how many examples), ascending, each length once
  bool empty() const { return histogram.empty() && counts.empty(); }
  bool operator==(const LengthsSpec&) const = default;
};

/// A file of training examples.
struct TrainFile {
  std::string path;
  double weight = 0;  ///< its share of an epoch, among the weights of all; 0 in all files: as many as it holds
  bool operator==(const TrainFile&) const = default;
};

/// Data files are JSONL, plain or compressed, or Parquet.
struct DataSpec {
  std::vector<TrainFile> train;
  std::string eval;               ///< file; empty: none, or a part of train (eval_fraction)
  double eval_fraction = 0;       ///< [0, 0.5]: share of train held out, chosen by a hash of each example's text
  DataFormat format = DataFormat::automatic;
  std::string chat_template;      ///< file with a Jinja template; empty: the model's own
  int64_t max_length = 0;         ///< tokens per example; 0: the model's context length
  Truncation truncation = Truncation::right;
  bool train_on_prompt = false;   ///< label prompt tokens too
  SpecialTokens special_tokens = SpecialTokens::plain;  ///< of texts that no chat template makes
  int64_t max_examples = 0;       ///< of each file of train; 0: all
  LengthsSpec lengths;            ///< plan, simulate and emulated devices only: example lengths instead of data
  bool operator==(const DataSpec&) const = default;
};

/// Whether its files have weights: all have, or none has.
inline bool has_weights(const DataSpec& data) { return !data.train.empty() && data.train.front().weight > 0; }

/// Whether examples are held out to evaluate by: those of a file, or a part of train.
inline bool holds_out_examples(const DataSpec& data) { return !data.eval.empty() || data.eval_fraction > 0; }

/// `a.jsonl, b.jsonl`: for messages.
std::string names_of_train_files(const DataSpec& data);

/// The adapter. Names follow PEFT's LoraConfig where PEFT has them.
struct AdapterSpec {
  AdapterMethod method = AdapterMethod::lora;
  std::string init_from;                       ///< folder of an existing adapter to start from
  std::vector<std::string> target_modules;     ///< names (`q_proj`), `all-linear`, or one regular expression (full match)
  std::vector<std::string> exclude_modules;
  std::vector<int64_t> layers_to_transform;    ///< empty: every layer
  // LoRA
  int64_t r = 8;
  double alpha = 8;                            ///< key `alpha` or `lora_alpha`
  double dropout = 0;                          ///< key `dropout` or `lora_dropout`; [0, 1)
  bool use_rslora = false;                     ///< scale alpha/sqrt(r) in place of alpha/r
  double lora_plus_ratio = 1;                  ///< learning rate of B over that of A (LoRA+)
  ModulePattern<int64_t> rank_pattern;
  ModulePattern<double> alpha_pattern;
  // Bottleneck adapters
  int64_t bottleneck_size = 64;
  Activation activation = Activation::relu;
  // Diff pruning
  double density = 0.005;                      ///< (0, 1]: share of every target weight that is trained
  int64_t selection_batches = 4;               ///< batches whose summed gradient chooses the kept entries, by magnitude
  bool operator==(const AdapterSpec&) const = default;
};

struct TrainSpec {
  int64_t batch_size = 8;          ///< examples per optimizer step
  int64_t steps = 0;               ///< optimizer steps; exactly one of steps and epochs is set after validation
  double epochs = 0;
  OptimizerKind optimizer = OptimizerKind::adamw;
  double learning_rate = 2e-4;     ///< key `learning_rate` or `lr`
  double weight_decay = 0;
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;
  double momentum = 0;             ///< SGD
  ScheduleKind schedule = ScheduleKind::constant;  ///< key `lr_scheduler`
  int64_t warmup_steps = 0;
  double warmup_ratio = 0;
  double max_grad_norm = 0;        ///< 0: no clipping
  uint64_t seed = 0;
  Shuffle shuffle = Shuffle::epoch;
  int64_t eval_steps = 0;          ///< evaluate every n steps; 0: only before and after
  int64_t early_stopping_patience = 0;  ///< evaluations without improvement; 0: never
  double early_stopping_threshold = 0;
  bool load_best = false;          ///< key `load_best_model_at_end`: the output is the best checkpoint
  int64_t save_steps = 0;          ///< checkpoint every n steps; 0: at the end and on signals
  bool operator==(const TrainSpec&) const = default;
};

/// Whether the checkpoint of the best evaluation is kept: to end with, or to stop at.
inline bool keeps_best(const TrainSpec& train) { return train.load_best || train.early_stopping_patience > 0; }

/// Where an option was given, for messages.
struct OptionPlace {
  std::string file;   ///< the jobs file, or the command line's option
  int line = 0;       ///< 0 on the command line
  std::string field;  ///< as written: `jobs[2].adapter.lora_r`
  bool is_default = false;  ///< for all jobs: in `defaults`
};

struct JobSpec {
  std::string name;                ///< [A-Za-z0-9._-]+, unique in the run: the name of its output folder
  std::string tenant;
  int64_t priority = 0;            ///< higher goes first
  std::string deadline;            ///< ISO 8601 time (deadline.h) or empty
  DataSpec data;
  AdapterSpec adapter;
  TrainSpec train;
  SweepSpec sweep;
  std::string file;                ///< where it was read, for messages; no part of equality
  int line = 0;
  std::map<std::string, OptionPlace> places;  ///< the same of its options that were given, by path: `train.steps`

  /// Where the option was given, or the job's entry.
  OptionPlace place_of(const std::string& option) const {
    const auto found = places.find(option);
    return found != places.end() ? found->second : OptionPlace{file, line, (name.empty() ? "" : "jobs." + name + ".") + option};
  }
  bool operator==(const JobSpec& other) const {
    return std::tie(name, tenant, priority, deadline, data, adapter, train, sweep) ==
           std::tie(other.name, other.tenant, other.priority, other.deadline, other.data, other.adapter, other.train, other.sweep);
  }
};

enum class Sharing { separate, temporal, batch_all, hybrid };
/// Which jobs share microbatches under sharing hybrid (plan/fusion/round_tasks.h).
enum class TaskFusion { predicted, stages };
enum class Layout { ragged, chunked, padded };
enum class Recompute { automatic, never, always };
/// How the ranks of a pipeline take turns (schedule/pipeline/).
enum class RankOrder { automatic, gpipe, one_f_one_b, lorapp, muxtune, split };

/// Whether all-reduces of divided layers run beside other work (schedule/pipeline/clocks.h).
enum class Interleave { automatic, never, always };

/// How the rows of a round are dealt to replicas (train/row_dispatch.h).
enum class DispatchRule { balanced, greedy, even };

/// Which length buckets rows are dealt by: those of every round, or those of all jobs' data (LobRA §4.3).
enum class LengthBucketing { dynamic, fixed };

/// The run around the jobs. Every field is also an option of `cotune train`.
struct RunSpec {
  std::string output = "runs/latest";  ///< key `output_dir`
  std::string device = "auto";         ///< auto | cpu | cuda | emulated:FILE (emulated_file.h)
  std::string memory = "auto";         ///< `8GiB`, `60%` of what is free, or auto (80%)
  int64_t token_budget = 1024;         ///< tokens of one microbatch
  int64_t chunk_size = 64;             ///< layout chunked; may be chunk_size_as_found (jobs/found_chunk_size.h)
  int64_t threads = 0;                 ///< 0: one per core
  Sharing sharing = Sharing::hybrid;
  TaskFusion fusion = TaskFusion::predicted;
  Layout layout = Layout::ragged;
  Recompute recompute = Recompute::automatic;
  int64_t ranks = 1;                   ///< that the model is divided among
  std::string parallel = "stages";     ///< how: `pp=2,tp=2` (parallel.h); stages: as those of a pipeline; auto: as the planner chooses
  DispatchRule dispatch = DispatchRule::balanced;
  LengthBucketing length_buckets = LengthBucketing::dynamic;
  RankOrder pipeline_order = RankOrder::automatic;
  int64_t rounds_at_once = 0;  ///< on ranks, without a flush between them; 0: those of about eight seconds
  Interleave interleave = Interleave::automatic;
  bool stay = false;                   ///< wait for further jobs when all have ended
  bool tensorboard = false;            ///< write event files for TensorBoard
  std::string data_cache = "auto";     ///< folder of tokenized data; auto: the user's (data/dataset_cache.h); none: no such folder
  int64_t data_cache_gib = 50;         ///< what it may hold
  bool portable_kernels = false;       ///< force the ATen path where own kernels exist
  bool operator==(const RunSpec&) const = default;
};

/// A whole jobs file with `defaults` merged into every job, and the candidates of a sweep in place of its job.
struct JobsFile {
  ModelSpec model;
  RunSpec run;
  std::vector<JobSpec> jobs;
  bool operator==(const JobsFile&) const = default;
};

}  // namespace cotune
