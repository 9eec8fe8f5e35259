// --memory N is a promise: whatever jobs come together, what is held stays under the limit, and every job ends with the
// bits that it has alone without a limit, or is refused before its first step with the kind of memory that overflows.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <map>
#include <utility>

#include "base/file.h"
#include "jobs/jobs_file.h"
#include "ops/backend.h"
#include "ops/memory.h"
#include "train/run_record.h"
#include "train/small_run.h"

namespace cotune::testing {
namespace {

constexpr int64_t steps = 2;
constexpr const char* limits_the_host = "limits and counts the host's tensors";

class Dice {
 public:
  explicit Dice(uint64_t key) : key_(key) {}
  int64_t between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(uniform_below(key_, index_++, static_cast<uint64_t>(high - low + 1)));
  }
  template <typename T>
  T one_of(std::initializer_list<T> values) {
    return *(values.begin() + between(0, static_cast<int64_t>(values.size()) - 1));
  }

 private:
  uint64_t key_;
  uint64_t index_ = 0;
};

/// A job of any method, rank, targets and batch size; SmallRun gives it its rows by its name.
JobSpec random_spec(int64_t number) {
  Dice dice(mix_key(60, static_cast<uint64_t>(number)));
  const bool long_rows = dice.between(0, 4) == 0;
  JobSpec spec = small_job(long_rows ? "long" : "job" + std::to_string(number),
                           dice.one_of({AdapterMethod::lora, AdapterMethod::lora, AdapterMethod::bottleneck, AdapterMethod::diff_pruning}),
                           static_cast<uint64_t>(number + 1), steps);
  spec.adapter.r = dice.one_of<int64_t>({1, 4, 16, 64});
  spec.adapter.bottleneck_size = dice.one_of<int64_t>({4, 32, 128});
  spec.adapter.density = dice.one_of({0.005, 0.05});
  spec.adapter.dropout = dice.one_of({0.0, 0.2});
  spec.adapter.selection_batches = dice.between(1, 2);
  if (spec.adapter.method != AdapterMethod::bottleneck && dice.between(0, 2) == 0) {
    spec.adapter.target_modules = {"q_proj", "down_proj"};
  }
  if (dice.between(0, 3) == 0) spec.adapter.layers_to_transform = {1};
  spec.train.batch_size = dice.one_of<int64_t>({1, 3, 8});
  return spec;
}

constexpr int64_t form_count = 16;
constexpr std::array layouts = {Layout::ragged, Layout::chunked, Layout::padded};

/// Of many jobs the held-out rows are more, or longer, than those of a training batch; some have none.
void draw_held_out_rows(const JobSpec& spec, JobData& data) {
  const uint64_t key = mix_key(62, spec.train.seed);
  Dice dice(key);
  data.eval = small_data(key, dice.one_of<int64_t>({0, 5, 5, 40}), dice.one_of<int64_t>({30, 30, 600}));
}

/// Hundreds of checkpoints are written: into memory where there is such a folder.
std::filesystem::path quick_folder(const std::string& name) {
  std::error_code error;
  const std::filesystem::path folder = "/dev/shm/cotune-" + name + "-" + std::to_string(::getpid());
  std::filesystem::create_directories(folder, error);
  return error ? std::filesystem::temp_directory_path() / folder.filename() : folder;
}

TEST(MemoryPromise, HoldsOver200RandomMixes) {
  SKIP_ON_A_DEVICE() << limits_the_host;
  // Each form of job once in every layout, alone and without a limit.
  SmallRun alone("promise-alone");
  alone.folder = quick_folder("promise-alone");
  alone.change_data = draw_held_out_rows;
  std::vector<JobSpec> forms;
  std::map<std::pair<size_t, Layout>, std::string> expected;
  for (int64_t number = 0; number < form_count; ++number) {
    forms.push_back(random_spec(number));
    for (const Layout layout : layouts) {
      TrainerOptions options;
      options.policy.layout = layout;
      alone.trainer({forms.back()}, options)->run();
      expected[{forms.size() - 1, layout}] = adapter_bytes(alone, forms.back().name);
      std::filesystem::remove_all(alone.folder);
    }
  }
  SmallRun run("promise");
  run.folder = quick_folder("promise");
  run.change_data = draw_held_out_rows;
  int64_t refused_jobs = 0, finished_jobs = 0, reliefs = 0;
  for (uint64_t mix = 0; mix < 200; ++mix) {
    Dice dice(mix_key(61, mix));
    std::vector<JobSpec> specs;
    std::vector<size_t> form_of;
    for (int64_t count = dice.between(1, 5); count > 0; --count) {
      const auto form = static_cast<size_t>(dice.between(0, form_count - 1));
      const bool there = std::any_of(specs.begin(), specs.end(), [&](const JobSpec& spec) { return spec.name == forms[form].name; });
      if (there) continue;
      specs.push_back(forms[form]);
      specs.back().priority = dice.between(0, 2);
      form_of.push_back(form);
    }
    TrainerOptions options;
    options.policy.token_budget = dice.one_of<int64_t>({256, 512, 1024, 4096});
    options.policy.layout = dice.one_of({Layout::ragged, Layout::ragged, Layout::chunked, Layout::padded});
    options.policy.sharing = dice.one_of({Sharing::hybrid, Sharing::hybrid, Sharing::temporal, Sharing::separate, Sharing::batch_all});
    options.recompute = dice.one_of({Recompute::automatic, Recompute::automatic, Recompute::never, Recompute::always});
    release_unused_memory();
    reset_memory_peaks();
    const MemoryUsage before = memory_usage();
    options.tensor_limit_bytes = before.held_bytes + (int64_t{1} << dice.between(17, 23)) + dice.between(0, 1 << 20);
    class Watch : public RunObserver {
     public:
      void on_relief(const MemoryRelief&) override { ++reliefs; }
      int64_t reliefs = 0;
    } watch;
    options.observers = {&watch};
    const auto trainer = run.trainer(specs, options);
    trainer->run();
    EXPECT_LE(memory_usage().peak_held_bytes, options.tensor_limit_bytes) << "mix " << mix;
    reliefs += watch.reliefs;
    for (size_t i = 0; i < specs.size(); ++i) {
      const JobState& state = trainer->jobs()[i]->state();
      if (state.status == JobStatus::refused) {
        EXPECT_EQ(state.step, 0);
        EXPECT_THAT(state.failure, ::testing::ContainsRegex("exceeded at (weights|adapters|gradients|optimizer|activations|chain_kv|workspace|logits|files)"));
        ++refused_jobs;
      } else {
        EXPECT_EQ(state.status, JobStatus::finished) << "mix " << mix << ", " << specs[i].name << ": " << state.failure;
        if (state.status != JobStatus::finished) continue;
        // ATen promises agreement within rounding only.
        if (kernel_isa(at::kFloat, at::kCPU) != kernels::Isa::none) {
          EXPECT_EQ(adapter_bytes(run, specs[i].name), (expected[{form_of[i], options.policy.layout}])) << "mix " << mix << ", " << specs[i].name;
        }
        ++finished_jobs;
      }
    }
    std::filesystem::remove_all(run.folder);
    ASSERT_FALSE(HasFailure()) << "mix " << mix << ", limit " << options.tensor_limit_bytes - before.held_bytes << " above " << before.held_bytes;
  }
  // The limits were neither all too small nor all without effect.
  EXPECT_GE(refused_jobs, 20);
  EXPECT_GE(finished_jobs, 100);
  EXPECT_GE(reliefs, 5);
}

/// Counts who runs and who waits.
class Starts : public RunObserver {
 public:
  void on_job_started(const TrainingJob& job) override { started.push_back(job.spec().name); }
  void on_job_waiting(const TrainingJob& job) override { waited.push_back(job.spec().name); }
  std::vector<std::string> started, waited;
};

TEST(MemoryPromise, JobsThatDoNotFitWaitAndStartWhenOthersEnd) {
  SKIP_ON_A_DEVICE() << limits_the_host;
  SmallRun run("waits");
  std::vector<JobSpec> specs;
  for (int i = 0; i < 4; ++i) {
    specs.push_back(small_job("job" + std::to_string(i), AdapterMethod::lora, 1, 2));
    specs.back().adapter.r = 512;
    specs.back().adapter.target_modules = {"all-linear"};
  }
  specs[3].priority = 1;
  release_unused_memory();
  const int64_t before = memory_usage().held_bytes;
  reset_memory_peaks();
  run.trainer({specs[0]}, {})->run();
  const int64_t one_job = memory_usage().peak_held_bytes - before;
  std::filesystem::remove_all(run.folder);
  release_unused_memory();
  Starts starts;
  TrainerOptions options;
  options.policy.token_budget = 256;
  options.tensor_limit_bytes = memory_usage().held_bytes + one_job * 19 / 10;  // no room for two
  options.observers = {&starts};
  const auto trainer = run.trainer(specs, options);
  trainer->run();
  EXPECT_THAT(starts.started, ::testing::ElementsAre("job3", "job0", "job1", "job2"));
  EXPECT_THAT(starts.waited, ::testing::Not(::testing::IsEmpty()));
  for (const auto& job : trainer->jobs()) EXPECT_EQ(job->state().status, JobStatus::finished);
}

/// Takes all memory that the limit leaves when a job has made some steps, and gives it back when a job was paused for it.
class Squeeze : public RunObserver {
 public:
  Squeeze(int64_t limit_bytes, int64_t step) : limit_bytes_(limit_bytes), step_(step) {}
  void on_job_started(const TrainingJob& job) override { events.push_back("start " + job.spec().name); }
  void on_job_ended(const TrainingJob& job) override { events.push_back("end " + job.spec().name); }
  void on_notice(const std::string& notice) override { notices += notice + "\n"; }
  void on_step(const StepEvent& event) override {
    if (event.job->state().step != step_ || squeezed_) return;
    squeezed_ = true;
    release_unused_memory();
    ballast_ = at::empty({limit_bytes_ - memory_usage().held_bytes - left_bytes}, at::kByte);
  }
  void on_job_waiting(const TrainingJob& job) override {
    if (ballast_.defined()) events.push_back("pause " + job.spec().name);
    ballast_.reset();
  }
  std::vector<std::string> events;
  std::string notices;

 private:
  static constexpr int64_t left_bytes = 64 << 10;  // far less than a round takes
  int64_t limit_bytes_, step_;
  bool squeezed_ = false;
  at::Tensor ballast_;
};

// The third relief: smaller microbatches and recomputation are ruled out, so the youngest job of the lowest priority pauses at
// its last step, and goes on when another ends.
TEST(MemoryPromise, TheYoungestJobOfLeastPriorityPausesAndGoesOnWithEqualBits) {
  SKIP_ON_A_DEVICE() << limits_the_host;
  for (const AdapterMethod method : {AdapterMethod::lora, AdapterMethod::bottleneck, AdapterMethod::diff_pruning}) {
    std::vector<JobSpec> specs{small_job("first", AdapterMethod::lora, 1, 6), small_job("least", AdapterMethod::lora, 2, 6),
                               small_job("youngest", method, 3, 6)};
    specs[0].priority = 1;
    specs[2].adapter.dropout = method == AdapterMethod::lora ? 0.2 : 0;
    SmallRun whole("never-paused"), run("paused");
    whole.trainer(specs, {})->run();
    release_unused_memory();
    TrainerOptions options;
    options.policy.token_budget = 256;
    options.recompute = Recompute::never;
    options.tensor_limit_bytes = memory_usage().held_bytes + (int64_t{64} << 20);  // ample
    Squeeze squeeze(options.tensor_limit_bytes, 3);
    options.observers = {&squeeze};
    const auto trainer = run.trainer(specs, options);
    trainer->run();
    EXPECT_THAT(squeeze.events, ::testing::ElementsAre("start first", "start least", "start youngest", "pause youngest",
                                                       "end first", "start youngest", "end least", "end youngest"));
    const int step = method == AdapterMethod::diff_pruning ? 1 : 3;  // it selects for two rounds before its first step
    EXPECT_THAT(squeeze.notices, ::testing::HasSubstr(fmt::format("job `youngest` pauses at step {}\n", step)));
    for (const auto& job : trainer->jobs()) EXPECT_EQ(job->state().status, JobStatus::finished) << job->state().failure;
    if (kernel_isa(at::kFloat, at::kCPU) == kernels::Isa::none) continue;  // ATen promises agreement within rounding only
    EXPECT_EQ(finished_adapters(run, specs), finished_adapters(whole, specs));
  }
}

/// Leaves a tenth less after every step of job `first` than the last round took, until a job pauses. At every step, and whenever something
/// is given up, the peak since the step before is compared with the limit.
class Pressure : public RunObserver {
 public:
  explicit Pressure(int64_t limit_bytes) : limit_bytes_(limit_bytes) {}
  void on_notice(const std::string& notice) override {
    if (!notice.starts_with("memory: ")) return;
    expect_held(notice);
    measures.push_back(notice.substr(notice.rfind(": ") + 2));
    steps_under.push_back(0);
  }
  void on_step(const StepEvent& event) override {
    if (event.job->spec().name != "first") return;
    if (!steps_under.empty()) ++steps_under.back();
    const int64_t taken = memory_usage().peak_held_bytes - begin_bytes_;
    expect_held("a step");
    if (!squeezes_) return;
    ballast_.reset();
    release_unused_memory();
    ballast_ = at::empty({limit_bytes_ - memory_usage().held_bytes - taken * 9 / 10}, at::kByte);
    reset_memory_peaks();
    begin_bytes_ = memory_usage().held_bytes;
  }
  void on_job_waiting(const TrainingJob&) override {
    squeezes_ = squeezes_ && !ballast_.defined();
    ballast_.reset();
  }
  std::vector<std::string> measures;
  std::vector<int64_t> steps_under;  ///< of `first`, before the next measure

 private:
  void expect_held(const std::string& when) { EXPECT_LE(memory_usage().peak_held_bytes, limit_bytes_) << when; }

  int64_t limit_bytes_, begin_bytes_ = 0;
  bool squeezes_ = true;
  at::Tensor ballast_;
};

TEST(MemoryPromise, HoldsWithEveryMeasureInTurnAndEqualBits) {
  SKIP_ON_A_DEVICE() << limits_the_host;
  if (kernel_isa(at::kFloat, at::kCPU) == kernels::Isa::none) {
    GTEST_SKIP() << "ATen's attention scores of one row outweigh what a smaller token budget saves";
  }
  std::vector<JobSpec> specs{small_job("first", AdapterMethod::lora, 1, 12), small_job("long", AdapterMethod::lora, 2, 12),
                             small_job("youngest", AdapterMethod::bottleneck, 3, 12)};
  specs[0].priority = specs[1].priority = 1;
  for (JobSpec& spec : specs) spec.train.batch_size = 8;
  SmallRun whole("unlimited"), run("pressed");
  whole.trainer(specs, {})->run();
  release_unused_memory();
  TrainerOptions options;
  options.policy.token_budget = 1024;
  options.tensor_limit_bytes = memory_usage().held_bytes + (int64_t{64} << 20);  // ample
  reset_memory_peaks();
  Pressure pressure(options.tensor_limit_bytes);
  options.observers = {&pressure};
  const auto trainer = run.trainer(specs, options);
  trainer->run();
  EXPECT_THAT(pressure.measures, ::testing::ElementsAre("token budget 512", "token budget 256", "recomputation", ::testing::StartsWith("job `youngest` pauses at step ")));
  ASSERT_EQ(pressure.steps_under.size(), 4u);
  for (const size_t measure : {0, 2, 3}) EXPECT_GT(pressure.steps_under[measure], 0) << pressure.measures[measure];  // 1, the smaller budget, may not do
  EXPECT_LE(memory_usage().peak_held_bytes, options.tensor_limit_bytes);
  for (const auto& job : trainer->jobs()) EXPECT_EQ(job->state().status, JobStatus::finished) << job->state().failure;
  EXPECT_EQ(finished_adapters(run, specs), finished_adapters(whole, specs));
}

TEST(MemoryRelief, IsRecordedAndTakenUpOnResume) {
  SKIP_ON_A_DEVICE() << limits_the_host;
  if (kernel_isa(at::kFloat, at::kCPU) == kernels::Isa::none) {
    GTEST_SKIP() << "ATen's attention scores of one row outweigh what a smaller token budget saves";
  }
  SmallRun run("relief");
  RunRecord record;
  record.configuration = parse_jobs_file(
      "cotune: 1\nmodel: {config: llama-2-7b, weights: random}\njobs:\n"
      "  - {name: a, data: {train: a.jsonl}, adapter: {r: 4, target_modules: all-linear}}\n",
      "jobs.yaml", "/data", {}, Purpose::train);
  EXPECT_EQ(RunRecord::from_json(record.to_json(), "run.json").relief, std::nullopt);
  record.relief = MemoryRelief{1024, 256, true};
  EXPECT_EQ(RunRecord::from_json(record.to_json(), "run.json").relief, record.relief);

  // With the relief a run needs none again; a request for another budget is a fresh start.
  class Rounds : public RunObserver {
   public:
    void on_relief(const MemoryRelief& found) override { last = found; }
    std::optional<MemoryRelief> last;
  };
  JobSpec spec = small_job("long", AdapterMethod::lora, 4, 2);
  spec.train.batch_size = 8;
  const auto relief_of = [&](std::optional<MemoryRelief> known, int64_t limit) {
    std::filesystem::remove_all(run.folder / "jobs");
    Rounds rounds;
    TrainerOptions options;
    options.tensor_limit_bytes = limit;
    options.relief = known;
    options.observers = {&rounds};
    release_unused_memory();
    const auto trainer = run.trainer({spec}, options);
    trainer->run();
    EXPECT_EQ(trainer->jobs()[0]->state().status, JobStatus::finished) << trainer->jobs()[0]->state().failure;
    return rounds.last;
  };
  release_unused_memory();
  reset_memory_peaks();
  const int64_t before = memory_usage().held_bytes;
  EXPECT_EQ(relief_of(std::nullopt, 0), std::nullopt);
  const int64_t limit = before + (memory_usage().peak_held_bytes - before) * 2 / 3;
  const std::optional<MemoryRelief> found = relief_of(std::nullopt, limit);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->requested_token_budget, 1024);
  EXPECT_LT(found->token_budget, 1024);
  EXPECT_EQ(relief_of(found, limit), std::nullopt);
  MemoryRelief of_another_request = *found;
  of_another_request.requested_token_budget = 4096;
  EXPECT_EQ(relief_of(of_another_request, limit), found);
}

}  // namespace
}  // namespace cotune::testing
