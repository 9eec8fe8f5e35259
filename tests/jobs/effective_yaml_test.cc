#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/random.h"
#include "jobs/jobs_file.h"
#include "jobs/option_table.h"

namespace cotune {
namespace {

/// Draws valid values for every option of the table.
class RandomSpecs {
 public:
  explicit RandomSpecs(uint64_t seed) : key_(mix64(seed)) {}

  JobsFile jobs_file() {
    JobsFile file;
    fill({&file.model, &file.run, nullptr}, {Section::model, Section::run});
    for (uint64_t i = 0, count = 1 + below(4); i < count; ++i) {
      JobSpec job;
      fill({&file.model, &file.run, &job}, {Section::job, Section::data, Section::adapter, Section::train});
      job.name = "job-" + std::to_string(i);
      if (below(2) == 0) fill_sweep(job);
      if (job.train.steps == 0 && job.train.epochs == 0) job.train.epochs = 1;
      if (job.data.train.empty() && job.data.lengths.empty()) job.data.train = {{"/t"}};
      file.jobs.push_back(job);
    }
    file.run.chunk_size = std::min(file.run.chunk_size, file.run.token_budget);
    if (file.model.path.empty() && file.model.config.empty()) file.model.path = "/m";
    if (!file.model.path.empty()) {
      file.model.weights = "file";
      file.model.seed = 0;
    } else if (file.model.weights == "file") {
      file.model.weights = "none";
    }
    return file;
  }

 private:
  uint64_t below(uint64_t bound) { return uniform_below(key_, next_++, bound); }

  void fill(const OptionTarget& target, std::vector<Section> sections) {
    std::map<std::string, std::string> taken;
    for (const Option& option : option_table()) {
      if (std::find(sections.begin(), sections.end(), option.section) == sections.end()) continue;
      if (option.input_only || below(2) == 0) continue;
      if (option.condition && !option.condition->holds(target)) continue;
      if (!option.group.empty() && !taken.emplace(option.group, option.alternative).second) continue;
      option.set(target, value(option));
    }
  }

  /// A candidate, of a sweep of its own.
  void fill_sweep(JobSpec& job) {
    job.sweep.of = "any";
    fill({nullptr, nullptr, &job}, {Section::sweep, Section::halving});
    job.sweep.of = "sweep-of-" + job.name;
    const HalvingSpec none;
    if (!job.sweep.halving.is_on()) job.sweep.halving = none;
    if (job.data.lengths.empty() && job.data.eval.empty() && job.data.eval_fraction == 0) job.data.eval_fraction = 0.25;
  }

  double number(const Accepted& accepted) {
    const double low = std::max(accepted.low, -1e6), high = std::min(accepted.high, 1e6);
    if (below(3) == 0 && !accepted.low_open) return accepted.low;
    const double share = std::pow(uniform(key_, next_++), 4) * 0.999 + 1e-12;
    return low + share * (high - low);
  }

  int64_t whole(const Accepted& accepted) {
    const auto low = static_cast<int64_t>(accepted.low), high = static_cast<int64_t>(accepted.high);
    return low + static_cast<int64_t>(below(static_cast<uint64_t>(high - low) + 1));
  }

  std::string text() {
    static const std::string characters = "abcXYZ019 ._-/:#'\"\\{}[]&*!|>%@`~,?=";
    std::string result = "t";
    for (uint64_t i = 0, count = below(12); i < count; ++i) result += characters[below(characters.size())];
    return below(4) == 0 ? result + "漢é" : result;
  }

  std::vector<std::string> modules() {
    switch (below(4)) {
      case 0: return {"all-linear"};
      case 1: return {"q_proj"};
      case 2: return {"mlp.up_proj", "layers.3.self_attn.k_proj", "v_proj"};
      default: return {R"(.*\.layers\.[0-9]+\.(self_attn|mlp)\.("|'|q)?.*proj)"};
    }
  }

  OptionValue value(const Option& option) {
    const Accepted& accepted = option.accepted;
    switch (accepted.type) {
      case OptionType::text: return text();
      case OptionType::identifier: return "x" + std::to_string(below(1000)) + ".a-b_C";
      case OptionType::time: return std::string("2026-01-31T18:00:30+02:00");
      case OptionType::path: return std::filesystem::path("/" + text()).lexically_normal().string() + "x";
      case OptionType::files:
        switch (below(3)) {
          case 0: return std::vector<TrainFile>{{"/a b.jsonl"}};
          case 1: return std::vector<TrainFile>{{"/x.jsonl"}, {"/y: #.jsonl"}};
          default: return std::vector<TrainFile>{{"/x.jsonl", 0.25 + static_cast<double>(below(9))}, {"/漢.jsonl", 1e-3}};
        }
      case OptionType::name_or_path: return std::string(below(2) ? "llama-7b" : "/x/c.json");
      case OptionType::memory: return std::string(below(2) ? "8GiB" : "62.5%");
      case OptionType::parallel: return std::string("auto");  // degrees go with a number of ranks
      case OptionType::choice: return accepted.choices[below(accepted.choices.size())];
      case OptionType::boolean: return below(2) == 1;
      case OptionType::whole:
        if (accepted.may_be_auto && below(3) == 0) return std::string("auto");
        return whole(accepted);
      case OptionType::seed: return mix64(key_ ^ next_++);
      case OptionType::number: return number(accepted);
      case OptionType::modules: return modules();
      case OptionType::wholes: return std::vector<int64_t>{whole(accepted), whole(accepted)};
      case OptionType::lengths:
        if (below(2) == 0) return LengthsSpec{.histogram = below(2) ? "xsum-gamma" : "/x/lengths.json"};
        return LengthsSpec{.counts = {{1 + int64_t(below(50)), 1 + int64_t(below(9))}, {100 + int64_t(below(50)), 7}}};
      case OptionType::whole_by_module:
        return ModulePattern<int64_t>{{"v_proj", whole(accepted)}, {R"(layers\.1\..*"')", whole(accepted)}};
      case OptionType::number_by_module:
        return ModulePattern<double>{{"z: #", number(accepted)}, {"漢.*", number(accepted)}};
      case OptionType::swept_values:
        return std::vector<std::pair<std::string, std::string>>{{"adapter.target_modules", "[q_proj, v_proj]"}, {"train.learning_rate", "1e-05"}};
      case OptionType::grid:
      case OptionType::distributions: return std::vector<SweptField>{};  // candidates have none
    }
    return {};
  }

  uint64_t key_;
  uint64_t next_ = 0;
};

TEST(EffectiveYaml, ReadsBackAsTheSameConfiguration) {
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    const JobsFile file = RandomSpecs(seed).jobs_file();
    const std::string text = to_yaml(file);
    JobsFile read;
    ASSERT_NO_THROW(read = parse_jobs_file(text, "effective.yaml", "/elsewhere", {}, Purpose::plan)) << text;
    ASSERT_EQ(read, file) << text << "\n----\n" << to_yaml(read);
  }
}

TEST(EffectiveYaml, SpellsDefaultsOutAndLeavesOutWhatDoesNotApply) {
  const JobsFile file = parse_jobs_file(
      "{cotune: 1, model: {path: /m}, jobs: [{name: a, data: {train: t}, adapter: {method: bottleneck}}]}", "j", "/f", {},
      Purpose::train);
  EXPECT_EQ(to_yaml(file), R"(cotune: 1
model:
  path: /m
  weights: file
  dtype: auto
run:
  output_dir: runs/latest
  device: auto
  memory: auto
  token_budget: 1024
  threads: 0
  ranks: 1
  parallel: stages
  sharing: hybrid
  fusion: predicted
  layout: ragged
  recompute: auto
  stay: false
  tensorboard: false
  data_cache: auto
  data_cache_gib: 50
  portable_kernels: false
jobs:
  - name: a
    priority: 0
    data:
      train: /f/t
      format: auto
      max_length: 0
      truncation: right
      train_on_prompt: false
      special_tokens: plain
      max_examples: 0
    adapter:
      method: bottleneck
      bottleneck_size: 64
      activation: relu
    train:
      batch_size: 8
      epochs: 1
      optimizer: adamw
      learning_rate: 0.0002
      weight_decay: 0
      beta1: 0.9
      beta2: 0.999
      epsilon: 1e-08
      lr_scheduler: constant
      max_grad_norm: 0
      seed: 0
      shuffle: epoch
      save_steps: 0
)");
}

}  // namespace
}  // namespace cotune
