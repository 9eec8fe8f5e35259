/// Every kind of mistake in a jobs file, with the exact message a user sees.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "jobs/jobs_file.h"
#include "support/source_folder.h"

namespace cotune {
namespace {

/// Line 1 of every text.
const std::string model = "{cotune: 1, model: {path: m}, ";

std::string mistakes(const std::string& text, std::vector<std::string> overrides = {}, Purpose purpose = Purpose::train) {
  try {
    parse_jobs_file(text, "j.yaml", "/folder", overrides, purpose);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

/// The mistakes of one job, with data given, whose sections are in line 3.
std::string job_mistakes(const std::string& sections, std::vector<std::string> overrides = {},
                         const std::string& defaults = "{}") {
  return mistakes(model + "defaults: " + defaults + ", jobs: [\n{name: a, data: {train: t},\n" + sections + "}]}", overrides);
}

struct Case {
  std::string input;
  std::string message;
};

TEST(JobsFileMistakes, InTheShapeOfTheFile) {
  const std::vector<Case> cases = {
      {"", "j.yaml: cotune: `cotune: 1` is missing: the version of the file's format\n"
           "j.yaml: jobs: is missing: a list of jobs\n"
           "j.yaml: model: `path` is missing: a Hugging Face folder, a GGUF file, or the name of a model in the Hugging Face cache"},
      {"cotune: 2\nmodel: {path: m}\njobs: [{name: a, data: {train: t}}]",
       "j.yaml:1: cotune: the version of the file's format must be 1, got 2"},
      {"[1]", "j.yaml:1: must be a map of options, got a list"},
      {model + "jobs: []}", "j.yaml:1: jobs: must be a list with at least one job, got an empty list"},
      {model + "jobs: }", "j.yaml:1: jobs: must be a list with at least one job, got nothing"},
      {model + "jobs: {a: 1}}", "j.yaml:1: jobs: must be a list with at least one job, got a map"},
      {model + "jobs: [3]}", "j.yaml:1: jobs[0]: must be a map of options, got 3\n"},
      {model + "jobs: [{name: a, data: {train: t},\ntrain: [1]}]}",
       "j.yaml:2: jobs[0].train: must be a map of options, got a list"},
      {model + "jobs: [{name: a, data: {train: t}}],\njob: 1}", "j.yaml:2: job: unknown key; did you mean `jobs`?"},
      {model + "jobs: [{name: a, data: {train: t}}],\nlearning_rate: 1}",
       "j.yaml:2: learning_rate: unknown key; `learning_rate` belongs under `defaults.train` or `jobs[].train`"},
      {model + "jobs: [{name: a, data: {train: t}}],\ntrain: {lr: 1}}", "j.yaml:2: train: unknown key; `train` belongs under `defaults` or `jobs[]`"},
      {model + "jobs: [{name: a, data: {train: t}}],\nadapter: {r: 8}}",
       "j.yaml:2: adapter: unknown key; `adapter` belongs under `defaults` or `jobs[]`"},
      {model + "jobs: [{name: a, data: {train: t}}],\nsweep: {grid: {}}}", "j.yaml:2: sweep: unknown key; `sweep` belongs under `jobs[]`"},
      {model + "jobs: [{name: a, data: {train: t}}],\nhalving: {}}", "j.yaml:2: halving: unknown key; `halving` belongs under `jobs[].sweep`"},
      {model + "jobs: [{name: a, data: {train: t}}],\nseed: 3}",
       "j.yaml:2: seed: unknown key; `seed` belongs under `defaults.train`, `jobs[].train`, `jobs[].sweep` or `model`"},
      {model + "jobs: [{name: a, data: {train: t}}],\nname: b}", "j.yaml:2: name: unknown key; `name` belongs under `jobs[]`"},
      {model + "jobs: [{name: a, data: {train: t}}],\npriority: 1}",
       "j.yaml:2: priority: unknown key; `priority` belongs under `defaults` or `jobs[]`"},
      {"{cotune: 1, model: {path: m,\nlr: 1}, jobs: [{name: a, data: {train: t}}]}",
       "j.yaml:2: model.lr: unknown key; `lr` belongs under `defaults.train` or `jobs[].train`"},
      {model + "jobs: [{name: a, data: {train: t}}],\nmemory: 1}",
       "j.yaml:2: memory: unknown key; `memory` belongs under `run`"},
      {model + "jobs: [{name: a, data: {train: t}}],\nwandb_project: 1}",
       "j.yaml:2: wandb_project: unknown key; accepted: cotune, model, run, defaults, jobs"},
      {model + "jobs: [{name: a, data: {train: t}}],\n[1, 2]: 1}", "j.yaml:2: a key must be a text"},
      {"cotune: 1\nmodel: {path: m}\njobs: [{name: a, data: {train: t}}]\ncotune: 1",
       "j.yaml:4: cotune: given twice; first in line 1"},
      {model + "defaults: &d {data: {train: t}}, jobs: [{name: a, data: {train: t},\n<<: *d}]}",
       "j.yaml:2: jobs[0].<<: merge keys are not part of YAML 1.2; put what jobs share under `defaults`"},
      {model + "jobs: [{name: a, data: {train: t}}]}\n---\n{}",
       "j.yaml:2: a second YAML document, or text after the end of the first"},
      {"a: [1", "j.yaml:1: not YAML: end of sequence flow not found"},
      {"a: \xff", "j.yaml:1: byte 0xff is not UTF-8 text"},
  };
  for (const Case& c : cases) {
    const std::string found = mistakes(c.input);
    const bool is_first_only = c.message.ends_with('\n');
    EXPECT_EQ(is_first_only ? found.substr(0, c.message.size()) : found, c.message) << c.input;
  }
}

TEST(JobsFileMistakes, InTheModel) {
  const std::string rest = "}, jobs: [{name: a, data: {train: t}}]}";
  const std::vector<Case> cases = {
      {"", "j.yaml: model: `path` is missing: a Hugging Face folder, a GGUF file, or the name of a model in the Hugging Face cache"},
      {"path: m, config: c", "j.yaml:1: model.config: `path` and `config` exclude each other: give one"},
      {"path: m, weights: random", "j.yaml:1: model.weights: `random` needs `config` in place of `path`"},
      {"config: c", "j.yaml:1: model.config: `config` has no weights: set `weights: random` or `none`"},
      {"config: c, weights: file", "j.yaml:1: model.weights: `config` has no weights: set `weights: random` or `none`"},
      {"config: c, weights: none", "j.yaml:1: model.weights: training needs weights, got none; `cotune plan`, `cotune simulate` and an emulated device do without"},
      {"path: m, weights: rand", "j.yaml:1: model.weights: must be one of file, none, random, got rand; did you mean `random`?"},
      {"path: m, seed: 1", "j.yaml:1: model.seed: `seed` belongs to weights random; this model's weights are file"},
      {"path: m, dtype: int8", "j.yaml:1: model.dtype: must be one of auto, float32, bfloat16, float64, got int8"},
  };
  for (const Case& c : cases) EXPECT_EQ(mistakes("{cotune: 1, model: {" + c.input + rest), c.message) << c.input;
  EXPECT_EQ(mistakes("{cotune: 1, base_model: m, model: {path: m" + rest),
            "j.yaml:1: model.path: the same option as `base_model` in line 1: give one");
}

TEST(JobsFileMistakes, InTheRun) {
  const std::vector<Case> cases = {
      {"memory: 8", "run.memory: must be auto, an amount such as 8GiB or 512MB (at least 1MiB), or a percentage such as 60%, got 8"},
      {"device: tpu", "run.device: must be one of auto, cpu, cuda, emulated:FILE, got tpu; did you mean `cpu`?"},
      {"device: 'emulated:'", "run.device: must be one of auto, cpu, cuda, emulated:FILE, got the text \"emulated:\""},
      {"token_budget: 0", "run.token_budget: must be a whole number from 256 to 1048576, got 0"},
      {"layout: chunked, chunk_size: 1025", "run.chunk_size: must be at most run.token_budget, 1024, got 1025"},
      {"layout: chunked, chunk_size: 0", "run.chunk_size: must be a whole number from 1 to 1048576, or auto, got 0"},
      {"layout: chunked, chunk_size: automatic", "run.chunk_size: must be a whole number from 1 to 1048576, or auto, got automatic"},
      {"chunk_size: auto", "run.chunk_size: `chunk_size` belongs to layout chunked; this run's layout is ragged"},
      {"data_cache: none, data_cache_gib: 9", "run.data_cache_gib: `data_cache_gib` bounds the folder of run.data_cache, which is none"},
      {"sharing: fused", "run.sharing: must be one of separate, temporal, batch-all, hybrid, got fused"},
      {"portable_kernels: yes", "run.portable_kernels: must be true or false, got yes"},
      {"output_dir: ''", "run.output_dir: must be a text, got an empty one"},
      {"outputdir: x", "run.outputdir: unknown key; did you mean `output_dir`?"},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(mistakes(model + "run: {" + c.input + "}, jobs: [{name: a, data: {train: t}}]}"), "j.yaml:1: " + c.message);
  }
}

TEST(JobsFileMistakes, InNames) {
  const std::string accepted = "must be 1 to 100 letters, digits, `.`, `_` and `-`, not starting with `.` or `-`, got ";
  EXPECT_EQ(mistakes(model + "jobs: [\n{data: {train: t}}]}"), "j.yaml:2: jobs[0]: `name` is missing");
  EXPECT_EQ(mistakes(model + "jobs: [\n{name: a b, data: {train: t}}]}"), "j.yaml:2: jobs[0].name: " + accepted + "a b");
  EXPECT_EQ(mistakes(model + "jobs: [\n{name: ../a, data: {train: t}}]}"), "j.yaml:2: jobs[0].name: " + accepted + "../a");
  EXPECT_EQ(mistakes(model + "jobs: [\n{name: .a, data: {train: t}}]}"), "j.yaml:2: jobs[0].name: " + accepted + ".a");
  EXPECT_EQ(mistakes(model + "jobs: [\n{name: --json, data: {train: t}}]}"), "j.yaml:2: jobs[0].name: " + accepted + "--json");
  EXPECT_EQ(mistakes(model + "jobs: [\n{name: null, data: {train: t}}]}"), "j.yaml:2: jobs[0]: `name` is missing");
  EXPECT_EQ(mistakes(model + "jobs: [\n{name: " + std::string(101, 'x') + ", data: {train: t}}]}"),
            "j.yaml:2: jobs[0].name: " + accepted + std::string(60, 'x') + "…");
  EXPECT_EQ(mistakes(model + "defaults: {data: {train: t}}, jobs: [{name: a},\n{name: b},\n{name: a}]}"),
            "j.yaml:3: jobs[2].name: `a` is also the name of jobs[0]");
  const std::string reserved = "`base` is reserved for the model without an adapter: give the job another name";
  EXPECT_EQ(mistakes(model + "jobs: [\n{name: base, data: {train: t}}]}"), "j.yaml:2: jobs[0].name: " + reserved);
  EXPECT_EQ(mistakes(model + "jobs: [\n{name: base, data: {train: t, eval: e}, sweep: {grid: {adapter.r: [2, 4]}}}]}"), "j.yaml:2: jobs[0].name: " + reserved)
      << "the best candidate's adapter would have that name";
  EXPECT_EQ(mistakes(model + "defaults: {name: x, data: {train: t}}, jobs: [{name: a}]}"),
            "j.yaml:1: defaults.name: every job needs its own `name`");
}

TEST(JobsFileMistakes, InNamesAreNoneOfARunThatWasRecorded) {
  EXPECT_EQ(parse_configuration(model + "jobs: [{name: base, data: {train: t}}]}", "run.json", Purpose::train).jobs.front().name, "base");
}

TEST(JobsFileMistakes, InOptionsWithoutEffectAreNoneOfARunThatWasRecorded) {
  const std::string text = model + "jobs: [{name: a, data: {train: t}, adapter: {method: diff_pruning, init_from: x, selection_batches: 9}}]}";
  EXPECT_NE(mistakes(text), "");
  EXPECT_EQ(parse_configuration(text, "run.json", Purpose::train).jobs.front().adapter.selection_batches, AdapterSpec{}.selection_batches);
}

TEST(JobsFileMistakes, InAJob) {
  const std::string modules = "q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj, `all-linear` or one regular expression";
  const std::vector<Case> cases = {
      // keys
      {"adapter: {lora_drop: 1}", "adapter.lora_drop: unknown key; did you mean `lora_dropout`?"},
      {"adapter: {lr: 1}", "adapter.lr: unknown key; `lr` belongs under `train`"},
      {"adapter: {seed: 1}", "adapter.seed: unknown key; `seed` belongs under `train`, `sweep` or `model`"},
      {"adapter: {train: {lr: 1}}", "adapter.train: unknown key; `train` belongs under `defaults` or `jobs[]`"},
      {"run: {threads: 1}", "run: unknown key; `run` belongs at the top of the file"},
      {"trian: {}", "trian: unknown key; did you mean `train`?"},
      {"r: 4", "r: unknown key; `r` belongs under `adapter`"},
      {"something_else: 4", "something_else: unknown key; accepted: name, tenant, priority, deadline, data, adapter, train, sweep"},
      {"train: {lr: 1, learning_rate: 1}", "train.learning_rate: the same option as `lr` in line 3: give one"},
      {"train: {lr: 1, lr: 1}", "train.lr: given twice; first in line 3"},
      // numbers
      {"adapter: {r: 0}", "adapter.r: must be a whole number from 1 to 512, got 0"},
      {"adapter: {r: 513}", "adapter.r: must be a whole number from 1 to 512, got 513"},
      {"adapter: {lora_r: -1}", "adapter.lora_r: must be a whole number from 1 to 512, got -1"},
      {"adapter: {r: 4.5}", "adapter.r: must be a whole number from 1 to 512, got 4.5"},
      {"adapter: {r: 010}", "adapter.r: must be a whole number from 1 to 512, got 010"},
      {"adapter: {r: 99999999999999999999}", "adapter.r: must be a whole number from 1 to 512, got 99999999999999999999"},
      {"adapter: {r: '16'}", "adapter.r: must be a whole number from 1 to 512, got the text \"16\": write it without quotes"},
      {"adapter: {r: [1]}", "adapter.r: must be a whole number from 1 to 512, got a list"},
      {"adapter: {r: {a: 1}}", "adapter.r: must be a whole number from 1 to 512, got a map"},
      {"adapter: {dropout: 1}", "adapter.dropout: must be a number of at least 0 and below 1, got 1"},
      {"adapter: {alpha: 0}", "adapter.alpha: must be a number above 0, got 0"},
      {"train: {lr: 0}", "train.lr: must be a number above 0, got 0"},
      {"train: {lr: -1e-3}", "train.lr: must be a number above 0, got -1e-3"},
      {"train: {lr: .inf}", "train.lr: must be a number above 0, got .inf"},
      {"train: {lr: inf}", "train.lr: must be a number above 0, got inf"},
      {"train: {lr: .nan}", "train.lr: must be a number above 0, got .nan"},
      {"train: {lr: nan}", "train.lr: must be a number above 0, got nan"},
      {"train: {lr: 1e999}", "train.lr: must be a number above 0, got 1e999"},
      {"train: {lr: 2e-4x}", "train.lr: must be a number above 0, got 2e-4x"},
      {"train: {warmup_ratio: 1.5}", "train.warmup_ratio: must be a number from 0 to 1, got 1.5"},
      {"train: {seed: -1}", "train.seed: must be a whole number from 0 to 18446744073709551615, got -1"},
      {"train: {weight_decay: -1}", "train.weight_decay: must be a number of at least 0, got -1"},
      {"train: {steps: -1}", "train.steps: must be a whole number from 1 to 1000000000, got -1"},
      {"train: {max_steps: -2}", "train.max_steps: must be a whole number from -1 to 1000000000, got -2"},
      {"train: {max_steps: 1, epochs: 1}", "train.epochs: `max_steps` and `epochs` exclude each other: give one"},
      // other values
      {"adapter: {use_rslora: 'true'}", "adapter.use_rslora: must be true or false, got the text \"true\""},
      {"adapter: {method: lroa}", "adapter.method: must be one of lora, bottleneck, diff_pruning, got lroa; did you mean `lora`?"},
      {"deadline: tomorrow", "deadline: must be a time such as 2026-01-31 or 2026-01-31T18:00:00Z, got tomorrow"},
      {"deadline: 2026-13-01", "deadline: must be a time such as 2026-01-31 or 2026-01-31T18:00:00Z, got 2026-13-01"},
      {"tenant: \"a\\u0007b\"", "tenant: must be 1 to 100 letters, digits, `.`, `_` and `-`, not starting with `.` or `-`, got the text \"a\\x07b\""},
      // modules
      {"adapter: {target_modules: [q_porj]}",
       "adapter.target_modules: `q_porj` names no projection; accepted: " + modules + "; did you mean `q_proj`?"},
      {"adapter: {target_modules: lm_head}", "adapter.target_modules: `lm_head` names no projection; accepted: " + modules},
      {"adapter: {target_modules: [all-linear]}", "adapter.target_modules: `all-linear` must stand alone, not in a list"},
      {"adapter: {target_modules: ['.*_proj']}",
       "adapter.target_modules: `.*_proj` in a list is not a module's name; a list holds names, a regular expression stands alone (`target_modules: "
       "'a|b'`)"},
      {"adapter: {target_modules: '(q_proj'}",
       "adapter.target_modules: `(q_proj` is not a regular expression: missing closing parenthesis at character 8"},
      {"adapter: {target_modules: []}",
       "adapter.target_modules: must be a list of module names, `all-linear` or one regular expression, got an empty list"},
      {"adapter: {target_modules: [[q_proj]]}",
       "adapter.target_modules: must be a list of module names, `all-linear` or one regular expression, got a list with a list in it"},
      {"adapter: {layers_to_transform: x}", "adapter.layers_to_transform: must be a whole number from 0 to 9999, or a list of such, got x"},
      {"adapter: {layers_to_transform: [0, x]}",
       "adapter.layers_to_transform: must be a whole number from 0 to 9999, or a list of such, got a list with x in it"},
      {"adapter: {rank_pattern: [1]}",
       "adapter.rank_pattern: must be a map from regular expressions to, each, a whole number from 1 to 512, got a list"},
      {"adapter: {rank_pattern: {q_proj: 0}}",
       "adapter.rank_pattern: must be a map from regular expressions to, each, a whole number from 1 to 512, got 0 for `q_proj`"},
      {"adapter: {rank_pattern: {'(': 1}}", "adapter.rank_pattern: `(` is not a regular expression: missing closing parenthesis at character 2"},
      {"adapter: {rank_pattern: {q_proj: 1, q_proj: 2}}", "adapter.rank_pattern: `q_proj` is given twice"},
      {"adapter: {alpha_pattern: {q_proj: -2}}",
       "adapter.alpha_pattern: must be a map from regular expressions to, each, a number above 0, got -2 for `q_proj`"},
      // what belongs together
      {"train: {steps: 1, epochs: 1}", "train.epochs: `steps` and `epochs` exclude each other: give one"},
      {"train: {warmup_steps: 1, warmup_ratio: 0.1}", "train.warmup_ratio: `warmup_steps` and `warmup_ratio` exclude each other: give one"},
      {"train: {batch_size: 1, micro_batch_size: 1}", "train.micro_batch_size: `batch_size` and `micro_batch_size` exclude each other: give one"},
      {"train: {gradient_accumulation_steps: 2}",
       "train.gradient_accumulation_steps: needs `micro_batch_size`; `batch_size` counts all examples of an optimizer step"},
      {"train: {micro_batch_size: 65536, gradient_accumulation_steps: 2}",
       "train.gradient_accumulation_steps: micro_batch_size × gradient_accumulation_steps must be at most 65536, got 131072"},
      {"adapter: {target_modules: q_proj, lora_target_linear: true}",
       "adapter.lora_target_linear: `target_modules` and `lora_target_linear` exclude each other: give one"},
      {"adapter: {method: bottleneck, r: 4}", "adapter.r: `r` belongs to method lora; this job's method is bottleneck"},
      {"adapter: {method: bottleneck, target_modules: q_proj}",
       "adapter.target_modules: `target_modules` belongs to method lora or diff_pruning; this job's method is bottleneck"},
      {"adapter: {density: 0.1}", "adapter.density: `density` belongs to method diff_pruning; this job's method is lora"},
      {"adapter: {method: diff_pruning, lora_alpha: 4}", "adapter.lora_alpha: `alpha` belongs to method lora; this job's method is diff_pruning"},
      {"adapter: {selection_batches: 2}", "adapter.selection_batches: `selection_batches` belongs to method diff_pruning; this job's method is lora"},
      {"adapter: {method: diff_pruning, selection_batches: 2, init_from: x}",
       "adapter.selection_batches: `selection_batches` has no effect beside init_from: the adapter that is there has its entries"},
      {"train: {momentum: 0.9}", "train.momentum: `momentum` belongs to optimizer sgd; this job's optimizer is adamw"},
      {"train: {optimizer: sgd, beta1: 0.9}", "train.beta1: `beta1` belongs to optimizer adamw; this job's optimizer is sgd"},
      {"train: {eval_steps: 5}", "train.eval_steps: `eval_steps` needs data.eval or data.eval_fraction; this job has neither"},
      {"train: {early_stopping_patience: 5}",
       "train.early_stopping_patience: `early_stopping_patience` needs train.eval_steps (and data.eval or data.eval_fraction)"},
      {"train: {load_best: true}", "train.load_best: `load_best_model_at_end` needs data.eval or data.eval_fraction; this job has neither"},
      {"train: {early_stopping_threshold: 1}", "train.early_stopping_threshold: `early_stopping_threshold` needs train.early_stopping_patience"},
  };
  for (const Case& c : cases) EXPECT_EQ(job_mistakes(c.input), "j.yaml:3: jobs[0]." + c.message) << c.input;
}

TEST(JobsFileMistakes, InData) {
  const std::string head = model + "jobs: [{name: a, data: {\n";
  EXPECT_EQ(mistakes(head + "}}]}"), "j.yaml:1: jobs[0].data: `train` is missing: a JSONL file");
  EXPECT_EQ(mistakes(head + "}}]}", {}, Purpose::plan),
            "j.yaml:1: jobs[0].data: `train` or `lengths` is missing: a JSONL file, or example lengths");
  EXPECT_EQ(mistakes(head + "lengths: [3]}}]}"),
            "j.yaml:2: jobs[0].data.lengths: training needs data.train; `cotune plan`, `cotune simulate` and an emulated device take lengths");
  EXPECT_EQ(mistakes(head + "lengths: [0]}}]}", {}, Purpose::plan),
            "j.yaml:2: jobs[0].data.lengths: must be a list of lengths or a map from lengths to counts, each a whole "
            "number from 1 to 1048576, or the name or file of a histogram, got a list with 0 in it");
  const auto refused = [&](const std::string& lengths) {
    const std::string text = mistakes(head + "lengths: " + lengths + "}}]}", {}, Purpose::plan);
    return text.substr(std::min(text.size(), text.rfind(", got ")));
  };
  EXPECT_EQ(refused("{0: 3}"), ", got a map with the length 0");
  EXPECT_EQ(refused("{7: 0}"), ", got 0 examples of length 7");
  EXPECT_EQ(refused("{7: x}"), ", got x examples of length 7");
  EXPECT_EQ(refused("{a: 3}"), ", got a map with the length a");
  EXPECT_EQ(refused("{}"), ", got an empty map");
  EXPECT_EQ(refused("12"), ", got 12");
  EXPECT_EQ(mistakes(head + "train: t, lengths: [3]}}]}", {}, Purpose::plan),
            "j.yaml:2: jobs[0].data.lengths: `train` and `lengths` exclude each other: give one");
  EXPECT_EQ(mistakes(head + "train: t, eval: e, eval_fraction: 0.1}}]}"),
            "j.yaml:2: jobs[0].data.eval_fraction: `eval` and `eval_fraction` exclude each other: give one");
  EXPECT_EQ(mistakes(head + "train: t, eval_fraction: 0.6}}]}"),
            "j.yaml:2: jobs[0].data.eval_fraction: must be a number from 0 to 0.5, got 0.6");
}

TEST(JobsFileMistakes, InDefaultsThatNoJobCanUse) {
  EXPECT_EQ(job_mistakes("adapter: {method: bottleneck}", {}, "{adapter: {r: 8}}"),
            "j.yaml:1: defaults.adapter.r: `r` has an effect only with method lora, and no job is of that kind");
  EXPECT_EQ(job_mistakes("adapter: {method: diff_pruning, init_from: x}", {}, "{adapter: {selection_batches: 8}}"),
            "j.yaml:1: defaults.adapter.selection_batches: `selection_batches` has an effect only with method diff_pruning, without `init_from`, "
            "and no job is of that kind");
  EXPECT_EQ(job_mistakes("priority: 0", {}, "{train: {eval_steps: 8}}"),
            "j.yaml:1: defaults.train.eval_steps: `eval_steps` has an effect only with `data.eval` or `data.eval_fraction`, "
            "and no job is of that kind");
}

TEST(JobsFileMistakes, InOverrides) {
  const std::vector<Case> cases = {
      {"train.lr", "--set: must be key=value, got train.lr"},
      {"=3", "--set: must be key=value, got =3"},
      {"train.lr=1", "--set: train.lr: must start with model., run., defaults., jobs[PLACE]. or jobs.NAME."},
      {"jobs[0].train.lr=x", "--set: jobs[0].train.lr: must be a number above 0, got x"},
      {"jobs[0].train.l=x", "--set: jobs[0].train.l: unknown key; did you mean `lr`?"},
      {"jobs[0].lr=1", "--set: jobs[0].lr: unknown key; `lr` belongs under `train`"},
      {"jobs[1].train.lr=1", "--set: jobs[1].train.lr: there is no such job; the file has 1, counted from 0"},
      {"jobs[x].train.lr=1", "--set: jobs[x].train.lr: must be jobs[PLACE].KEY or jobs.NAME.KEY"},
      {"jobs.sentiment.train.lr=1", "--set: jobs.sentiment.train.lr: no job is called `sentiment`; the file's jobs: a"},
      {"jobs.a=5", "--set: jobs.a: must name one option of the job: jobs.a.KEY=value"},
      {"jobs.aa.train.lr=1", "--set: jobs.aa.train.lr: no job is called `aa`; did you mean `a`?"},
      {"jobs[0].train=1", "--set: jobs[0].train: must name one option of `train`: jobs[0].train.KEY=value"},
      {"defaults.name=1", "--set: defaults.name: every job needs its own `name`"},
      {"jobs[0].adapter.layers_to_transform=[1", "--set: jobs[0].adapter.layers_to_transform: line 1: not YAML: end of sequence flow not found"},
      {"jobs.a.sweep.grid={adapter.rnak: [1]}", "--set: jobs.a.sweep.grid.adapter.rnak: unknown key; did you mean `rank`?"},
      {"model.weights=none", "--set: model.weights: `none` needs `config` in place of `path`"},
  };
  for (const Case& c : cases) EXPECT_EQ(job_mistakes("priority: 0", {c.input}), c.message);
}

TEST(JobsFileMistakes, AreAllReportedAtOnceInTheOrderOfLines) {
  EXPECT_EQ(mistakes("cotune: 1\nmodel: {path: m}\njobs:\n  - name: a\n    data: {trian: t}\n    adapter:\n      r: 0\n"
                     "      dropuot: 1\n    train: {lr: x}\n",
                     {"run.memory=1"}),
            "j.yaml:5: jobs[0].data.trian: unknown key; did you mean `train`?\n"
            "j.yaml:7: jobs[0].adapter.r: must be a whole number from 1 to 512, got 0\n"
            "j.yaml:8: jobs[0].adapter.dropuot: unknown key; did you mean `dropout`?\n"
            "j.yaml:9: jobs[0].train.lr: must be a number above 0, got x\n"
            "--set: run.memory: must be auto, an amount such as 8GiB or 512MB (at least 1MiB), or a percentage such as "
            "60%, got 1");
}

TEST(JobsFileMistakes, OfAnOptionSayNothingOfThoseThatDependOnIt) {
  EXPECT_EQ(job_mistakes("adapter: {method: bottelneck, bottleneck_size: 8, r: 4}"),
            "j.yaml:3: jobs[0].adapter.method: must be one of lora, bottleneck, diff_pruning, got bottelneck; did you mean `bottleneck`?");
  EXPECT_EQ(job_mistakes("train: {optimizer: sdg, momentum: 0.9}"),
            "j.yaml:3: jobs[0].train.optimizer: must be one of adamw, sgd, got sdg; did you mean `sgd`?");
  EXPECT_EQ(mistakes(model + "jobs: [{name: a, data: {train: t, eval: [1]}, train: {eval_steps: 3, early_stopping_patience: 2, "
                             "early_stopping_threshold: 0.1}}]}"),
            "j.yaml:1: jobs[0].data.eval: must be a path, got a list");
}

TEST(JobsFileMistakes, OfTheRunsOptionsNameTheOptionOfTheCommandLine) {
  EXPECT_EQ(job_mistakes("priority: 0", {"--threads=-1", "--token-budget=1"}),
            "--threads: must be a whole number from 0 to 4096, got -1\n"
            "--token-budget: must be a whole number from 256 to 1048576, got 1");
}

TEST(JobsFileMistakes, OfAllEntriesOfModulesAndPatternsAreTold) {
  const std::string found = job_mistakes("adapter: {target_modules: [qproj, v_proj, vproj], rank_pattern: {'(': 4, q_proj: 0}}",
                                         {"jobs.a.adapter.alpha_pattern={q: 0, v: x}"});
  EXPECT_EQ(std::count(found.begin(), found.end(), '\n'), 5) << found;
  for (const char* part :
       {"adapter.target_modules: `qproj` names no projection", "adapter.target_modules: `vproj` names no projection",
        "adapter.rank_pattern: `(` is not a regular expression", "adapter.rank_pattern: must be a map from regular expressions",
        "jobs.a.adapter.alpha_pattern: must be a map from regular expressions to, each, a number above 0, got 0 for `q`",
        "got x for `v`"}) {
    EXPECT_NE(found.find(part), std::string::npos) << part << " in " << found;
  }
}

TEST(JobsFileMistakes, LeaveTheOtherSectionsSound) {
  const auto read = [](const std::string& jobs, std::vector<std::string> overrides = {}) {
    const std::string path = testing::TempDir() + "cotune_sound_test.yaml";
    write_file_atomically(path, "cotune: 1\nmodel: {config: llama-2-7b, weights: random}\njobs: [" + jobs + "]");
    Diagnostics mistakes;
    const JobsFileReading reading = read_jobs_file(path, overrides, Purpose::train, mistakes);
    std::string sound = reading.model ? "m" : "-";
    for (const auto& job : reading.jobs) sound += std::string(job.data ? "d" : job.records ? "r" : "-") + (job.adapter ? "a" : "-");
    return std::to_string(mistakes.size()) + sound;
  };
  const std::string here = (source_folder() / "README.md").string(), data = "data: {train: " + here + "}";
  EXPECT_EQ(read("{name: a, " + data + "}"), "0mda");
  EXPECT_EQ(read("{name: a, " + data + ", train: {lr: x}}"), "1mda");
  EXPECT_EQ(read("{name: a, " + data + ", adapter: {r: 0}}, {name: b, " + data + "}"), "1md-da");
  EXPECT_EQ(read("{name: a, data: {train: " + here + ", chat_template: [x]}}, {name: b, " + data + "}"), "1mrada");
  EXPECT_EQ(read("{name: a, data: {train: " + here + ", format: x}}, {name: b, " + data + "}"), "1m-ada");
  EXPECT_EQ(read("{name: a, " + data + "}", {"model.weights=x"}), "1-da");
  EXPECT_EQ(read("{name: a, " + data + "}", {"jobs.a.adapter.r=0", "defaults.data.chat_template="}), "2mr-");
  // So does what is too much: an unknown key, an option that is given twice, or has no effect.
  EXPECT_EQ(read("{name: a, data: {train: " + here + ", max_lenght: 9}}"), "1mda");
  EXPECT_EQ(read("{name: a, data: {train: " + here + ", foo: 9}}"), "1mda");
  // A key that was meant for another option leaves that one open.
  EXPECT_EQ(read("{name: a, data: {train: " + here + ", chat_templat: x}}"), "1mra");
  EXPECT_EQ(read("{name: a, " + data + ", adapter: {methd: bottleneck}}"), "1md-");
  EXPECT_EQ(read("{name: a, " + data + ", adapter: {lr: 1}}"), "1md-") << "which belongs under train";
  EXPECT_EQ(read("{name: a, " + data + "}", {"jobs.a.adapter.methd=bottleneck"}), "1md-");
  EXPECT_EQ(read("{name: a, " + data + ", adapter: {r: 4}, adapter: {target_modules: q_proj}}"), "1md-") << "a whole section";
  EXPECT_EQ(read("{name: a, data: {train: " + here + ", max_length: 9, max_length: 9}}"), "1mda");
  EXPECT_EQ(read("{name: a, " + data + ", adapter: {bottleneck_size: 9, rank: 3}}", {"model.foo=1"}), "2mda");
  EXPECT_EQ(read("{name: a, data: {train: " + here + ", max_length: x, max_length: 9}}"), "2mda");
  EXPECT_EQ(read("{name: a, " + data + ", adapter: {target_modules: 3, target_modules: q_proj}}"), "2md-") << "the first is a mistake";
  // What its default value does as well for leaves its section to be checked.
  EXPECT_EQ(read("{name: a, " + data + "}", {"model.seed=x", "model.dtype=int8"}), "2mda");
  EXPECT_EQ(read("{name: a, " + data + "}", {"defaults.data.max_length=x", "jobs.a.data.truncation=x"}), "2mda");
  // What is not there leaves the rest of its section to be checked.
  EXPECT_EQ(read("{name: a, data: {train: nowhere}, adapter: {init_from: nowhere}}"), "2mda");
}

TEST(JobsFileMistakes, StopAfterAHundred) {
  std::string text = model + "jobs: [{name: a, data: {train: t}, train: {";
  for (int i = 0; i < 500; ++i) text += "\nunknown_key_number_" + std::to_string(i) + ": 1,";
  const std::string found = mistakes(text + "}}]}");
  EXPECT_EQ(std::count(found.begin(), found.end(), '\n'), 100);
  EXPECT_TRUE(found.ends_with("\nonly the first 100 mistakes are shown"));
}

}  // namespace
}  // namespace cotune
