#include "engine/operator_profiler.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <numeric>

#include "base/sample_spread.h"
#include "engine/device_times.h"
#include "jobs/enum_names.h"
#include "ops/memory.h"

namespace cotune {
namespace {

using Clock = std::chrono::steady_clock;

/// Waits for a device that works while the host goes on.
void synchronize(at::Device device) {
  if (!device.is_cpu()) c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
}

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

std::vector<AdaptedModule> modules_of(const ProfiledJob& job, int64_t layer_count) {
  std::vector<AdaptedModule> modules;
  std::vector<Projection> projections = job.projections;
  std::sort(projections.begin(), projections.end());
  for (int64_t layer = 0; layer < layer_count; ++layer) {
    for (const Projection projection : projections) {
      modules.push_back({layer, projection, job.width, 2.0 * static_cast<double>(job.width)});
    }
  }
  return modules;
}

}  // namespace

OperatorProfiler::OperatorProfiler(std::shared_ptr<const Backbone> backbone, std::vector<ProfiledShape> shapes)
    : backbone_(std::move(backbone)), shapes_(std::move(shapes)), interpreter_(backbone_) {
  for (const ProfiledShape& shape : shapes_) {
    std::vector<Job>& jobs = jobs_.emplace_back();
    for (size_t i = 0; i < shape.jobs.size(); ++i) {
      const auto before = std::count_if(shape.jobs.begin(), shape.jobs.begin() + static_cast<std::ptrdiff_t>(i),
                                        [&](const ProfiledJob& other) { return other.method == shape.jobs[i].method; });
      jobs.push_back({adapter_for(shape.jobs[i], static_cast<int>(before)), random_batch(shape.jobs[i], shape.labelled_share)});
    }
  }
}

Adapter* OperatorProfiler::adapter_for(const ProfiledJob& job, int like_ones_before) {
  std::vector<int> projections;
  for (const Projection projection : job.projections) projections.push_back(static_cast<int>(projection));
  const std::string key = fmt::format("{} {} {} {} {} {}", name_of(job.method), job.width, job.density, job.dropout,
                                      fmt::join(projections, ","), like_ones_before);
  std::unique_ptr<Adapter>& adapter = adapters_[key];
  if (adapter != nullptr) return adapter.get();
  const MemoryScope scope(MemoryKind::adapters);
  AdapterSetup setup;
  setup.spec.method = job.method;
  setup.spec.dropout = job.dropout;
  setup.spec.density = job.density;
  setup.modules = modules_of(job, backbone_->config().layer_count);
  setup.compute = backbone_->compute();
  setup.device = backbone_->device();
  adapter = make_adapter(backbone_->config(), std::move(setup));
  select_entries(*adapter);
  return adapter.get();
}

void OperatorProfiler::select_entries(Adapter& adapter) {
  const int64_t passes = adapter.selection_passes();
  const Batch batch = random_batch({.row_lengths = {std::min<int64_t>(32, backbone_->positions())}}, 1);
  const std::vector<BatchShape> shapes = {batch.shape(0, adapter.lowest_layer())};
  for (int64_t pass = 0; pass < passes; ++pass) {
    adapter.begin_selection(pass);
    std::vector<JobRound> rounds(1);
    rounds[0].adapter = &adapter;
    rounds[0].batch = &batch;
    rounds[0].purpose = RoundPurpose::select;
    interpreter_.run(plan_step(shapes, {.layer_count = backbone_->config().layer_count}), rounds);
    adapter.end_selection(pass);
  }
}

Batch OperatorProfiler::random_batch(const ProfiledJob& job, double labelled_share) {
  Batch batch;
  const auto vocabulary = static_cast<uint64_t>(backbone_->config().vocabulary_size);
  for (const int64_t length : job.row_lengths) {
    BatchRow row{.key = random_()};
    for (int64_t i = 0; i < length; ++i) {
      row.tokens.push_back(static_cast<int32_t>(random_() % vocabulary));
      row.learned.push_back(i >= first_target(length, labelled_share) ? 1 : 0);
    }
    batch.rows.push_back(std::move(row));
  }
  return batch;
}

void OperatorProfiler::sweep() {
  std::vector<size_t> order(shapes_.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::shuffle(order.begin(), order.end(), random_);
  for (const size_t shape : order) run(shape);
}

void OperatorProfiler::run(size_t shape) {
  ++step_;
  std::vector<JobRound> rounds;
  std::vector<BatchShape> batches;
  for (size_t i = 0; i < jobs_[shape].size(); ++i) {
    Job& job = jobs_[shape][i];
    JobRound round;
    round.job = static_cast<int32_t>(i);
    round.adapter = job.adapter;
    round.batch = &job.batch;
    round.dropout_key = random_();
    round.optimizer = {.step = step_, .learning_rate = 1e-6};
    rounds.push_back(std::move(round));
    batches.push_back(job.batch.shape(static_cast<int32_t>(i), job.adapter->lowest_layer()));
  }

  std::map<std::string, std::pair<int64_t, double>> taken;  // calls, seconds
  const at::Device device = backbone_->device();
  synchronize(device);
  const Clock::time_point begin = Clock::now();
  double in_operators = 0;
  std::unique_ptr<DeviceTimes> device_times;  // where the host goes on while the device works
  if (device.is_cuda()) device_times = std::make_unique<DeviceTimes>(device);
  const auto take = [&](const std::string& key, double seconds) {
    auto& [calls, sum] = taken[key];
    ++calls;
    sum += seconds;
    in_operators += seconds;
  };
  interpreter_.stage().on_operator = [&](const Operator& op, const MicrobatchState&, double host_seconds) {
    if (device_times != nullptr) return device_times->mark(profile_key(op));
    take(profile_key(op), host_seconds);
  };
  if (device_times != nullptr) device_times->begin();
  const StepPlan plan = plan_step(
      batches, {.token_budget = shapes_[shape].token_budget, .layer_count = backbone_->config().layer_count});
  interpreter_.run(plan, rounds);
  if (device_times != nullptr) device_times->collect(take);
  synchronize(device);
  taken[round_key] = {1, std::max(0.0, seconds_since(begin) - in_operators)};
  interpreter_.stage().on_operator = nullptr;

  for (const auto& [key, calls_and_seconds] : taken) {
    const auto& [calls, seconds] = calls_and_seconds;
    Samples& samples = samples_[{key, shape}];
    samples.calls = calls;
    samples.seconds.push_back(seconds / static_cast<double>(calls));
  }
}

void OperatorProfiler::absorb(const OperatorProfiler& other) {
  for (const auto& [place, theirs] : other.samples_) {
    Samples& samples = samples_[place];
    samples.calls = theirs.calls;
    samples.seconds.insert(samples.seconds.end(), theirs.seconds.begin(), theirs.seconds.end());
  }
}

std::map<std::string, std::vector<ProfiledTime>> OperatorProfiler::times() const {
  std::map<std::string, std::vector<ProfiledTime>> times;
  for (const auto& [place, samples] : samples_) {
    const SampleSpread seconds = sample_spread(samples.seconds);
    times[place.first].push_back({.shape = static_cast<int64_t>(place.second),
                                  .calls = samples.calls,
                                  .median = seconds.median,
                                  .spread = seconds.spread,
                                  .count = static_cast<int64_t>(samples.seconds.size())});
  }
  return times;
}

}  // namespace cotune
