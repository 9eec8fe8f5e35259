#include "schedule/pipeline/template_makespan.h"

#include <algorithm>

#include "base/error.h"
#include "base/never.h"

namespace cotune {
double BucketTimes::latency_s() const {
  double sum = 0;
  for (const BucketStage& stage : stages) sum += stage.forward_s + stage.backward_s;
  return sum / static_cast<double>(stages.size());
}

BucketTimes bucket_times(std::span<const StageCost> cost, const MessageBytes& message_bytes, int32_t lowest_stage,
                         double optimizer_s, const PipelineCluster& cluster) {
  BucketTimes times{.lowest_stage = lowest_stage, .optimizer_s = optimizer_s};
  const auto transfer_s = [&](size_t from, size_t to, int64_t bytes) {
    return (cluster.overlap ? 1 : 2) *
           cluster.between(static_cast<int32_t>(from), static_cast<int32_t>(to)).seconds(bytes);
  };
  for (size_t s = 0; s < cost.size(); ++s) {
    times.stages.push_back({.forward_s = cost[s].forward_s,
                            .backward_s = cost[s].backward_s,
                            .send_up_s = s + 1 < cost.size() ? transfer_s(s, s + 1, message_bytes.activation) : 0,
                            .send_down_s = s > 0 ? transfer_s(s, s - 1, message_bytes.error) : 0,
                            .kept_bytes = cost[s].kept_bytes});
  }
  return times;
}

TemplateSimulator::TemplateSimulator(int32_t stage_count, int64_t microbatches, int64_t rounds)
    : stage_count_(static_cast<size_t>(stage_count)), microbatches_(microbatches), rounds_(rounds) {
  COTUNE_CHECK(stage_count >= 1 && microbatches >= 1 && rounds >= 1, "{} stages, {} microbatches, {} rounds",
               stage_count, microbatches, rounds);
}

double TemplateSimulator::makespan_s(std::span<const BucketTimes* const> buckets,
                                     std::span<const int64_t> kept_bytes_limit) {
  buckets_ = buckets;
  kept_bytes_limit_ = kept_bytes_limit;
  prepare(buckets);
  size_t left = 0;
  for (const BucketTimes* bucket : buckets) {
    left += static_cast<size_t>(rounds_ * microbatches_) *
            (2 * stage_count_ - static_cast<size_t>(bucket->lowest_stage));
  }
  computations_ += static_cast<int64_t>(left);
  for (size_t s = 0; s < stage_count_; ++s) refresh(s);
  for (; left > 0; --left) {
    size_t best = 0;
    for (size_t s = 1; s < stage_count_; ++s) {
      if (next_s_[s] < next_s_[best]) best = s;
    }
    if (next_s_[best] == never) return never;
    stages_[best].next_is_backward ? backward(best) : forward(best);
  }
  double last = 0;
  for (const Stage& stage : stages_) last = std::max(last, stage.free_s);
  return last;
}

std::vector<int64_t> TemplateSimulator::peak_kept_bytes() const {
  std::vector<int64_t> peaks;
  for (const Stage& stage : stages_) peaks.push_back(stage.peak_kept_bytes);
  return peaks;
}

void TemplateSimulator::prepare(std::span<const BucketTimes* const> buckets) {
  unit_count_ = static_cast<size_t>(rounds_ * microbatches_) * buckets.size();
  unit_bucket_.clear();
  slack_s_ = 0;
  for (int64_t round = 0; round < rounds_; ++round) {
    for (size_t b = 0; b < buckets.size(); ++b) {
      unit_bucket_.insert(unit_bucket_.end(), static_cast<size_t>(microbatches_), static_cast<int32_t>(b));
    }
  }
  for (const BucketTimes* bucket : buckets) {
    COTUNE_CHECK(bucket->stages.size() == stage_count_, "{} stages of {}", bucket->stages.size(), stage_count_);
    for (const BucketStage& stage : bucket->stages) {
      slack_s_ = std::max({slack_s_, 1e-9 * stage.forward_s, 1e-9 * stage.backward_s});
    }
  }
  bucket_count_ = buckets.size();
  costs_.resize(stage_count_ * bucket_count_);
  lowest_stage_.resize(bucket_count_);
  for (size_t b = 0; b < bucket_count_; ++b) {
    lowest_stage_[b] = static_cast<size_t>(buckets[b]->lowest_stage);
    for (size_t s = 0; s < stage_count_; ++s) costs_[s * bucket_count_ + b] = buckets[b]->stages[s];
  }
  next_s_.assign(stage_count_, never);
  stages_.resize(stage_count_);
  for (Stage& stage : stages_) {
    std::vector<Error> errors = std::move(stage.errors);  // its room
    errors.clear();
    stage = {};
    stage.errors = std::move(errors);
  }
  stages_[0].arrived = static_cast<int32_t>(unit_count_);
  forward_ready_s_.resize(stage_count_ * unit_count_);
  std::fill_n(forward_ready_s_.begin(), unit_count_, 0.0);
  backward_end_s_.assign(stage_count_ * buckets.size(), 0.0);
  rounds_done_.assign(buckets.size(), 0);
  step_done_s_.assign(buckets.size(), 0.0);
}

void TemplateSimulator::refresh(size_t s) {
  Stage& stage = stages_[s];
  double backward_s = never;
  for (size_t i = 0; i < stage.errors.size(); ++i) {
    // A bucket's backwards are one after the other, and ready no earlier than that.
    const Error& error = stage.errors[i];
    const auto b = static_cast<size_t>(unit_bucket_[static_cast<size_t>(error.unit)]);
    const double ready_s = std::max(error.arrival_s, backward_end_s_[s * bucket_count_ + b]);
    const bool is_first = ready_s < backward_s - slack_s_ ||
                          (ready_s <= backward_s + slack_s_ && error.unit < stage.errors[stage.next_error].unit);
    if (!is_first) continue;
    backward_s = ready_s;
    stage.next_error = i;
  }
  if (backward_s < never) backward_s = std::max(stage.free_s, backward_s);
  double forward_s = never;
  if (stage.forwards < stage.arrived) {
    const auto unit = static_cast<size_t>(stage.forwards);
    const auto b = static_cast<size_t>(unit_bucket_[unit]);
    const bool is_lowest = lowest_stage_[b] == s;
    const bool is_kept = lowest_stage_[b] <= s;
    const int64_t round =
        rounds_ == 1 ? 0 : static_cast<int64_t>(unit) / (microbatches_ * static_cast<int64_t>(bucket_count_));
    const bool has_room = !is_kept || kept_bytes_limit_.empty() ||
                          stage.kept_bytes + costs_[s * bucket_count_ + b].kept_bytes <= kept_bytes_limit_[s];
    if (has_room && (!is_lowest || rounds_done_[b] >= round)) {
      forward_s = std::max(stage.free_s, forward_ready_s_[s * unit_count_ + unit]);
      if (is_lowest && round > 0) forward_s = std::max(forward_s, step_done_s_[b]);
    }
  }
  stage.next_is_backward = backward_s < never && backward_s <= forward_s + slack_s_;
  next_s_[s] = stage.next_is_backward ? backward_s : forward_s;
}

void TemplateSimulator::forward(size_t s) {
  Stage& stage = stages_[s];
  const auto unit = static_cast<size_t>(stage.forwards++);
  const auto b = static_cast<size_t>(unit_bucket_[unit]);
  const BucketStage& cost = costs_[s * bucket_count_ + b];
  stage.free_s = next_s_[s] + cost.forward_s;
  if (lowest_stage_[b] <= s) stage.kept_bytes += cost.kept_bytes;
  stage.peak_kept_bytes = std::max(stage.peak_kept_bytes, stage.kept_bytes);
  if (s + 1 < stage_count_) {
    Stage& above = stages_[s + 1];
    forward_ready_s_[(s + 1) * unit_count_ + unit] = stage.free_s + cost.send_up_s;
    if (above.arrived++ == above.forwards) refresh(s + 1);
  } else {
    stage.errors.push_back({static_cast<int32_t>(unit), stage.free_s});
  }
  refresh(s);
}

void TemplateSimulator::backward(size_t s) {
  Stage& stage = stages_[s];
  const int32_t unit = stage.errors[stage.next_error].unit;
  stage.errors.erase(stage.errors.begin() + static_cast<std::ptrdiff_t>(stage.next_error));
  const auto b = static_cast<size_t>(unit_bucket_[static_cast<size_t>(unit)]);
  const BucketStage& cost = costs_[s * bucket_count_ + b];
  stage.free_s = next_s_[s] + cost.backward_s;
  stage.kept_bytes -= cost.kept_bytes;
  backward_end_s_[s * bucket_count_ + b] = stage.free_s;
  if (lowest_stage_[b] < s) {
    stages_[s - 1].errors.push_back({unit, stage.free_s + cost.send_down_s});
    refresh(s - 1);
  } else if ((unit + 1) % microbatches_ == 0) {
    ++rounds_done_[b];
    step_done_s_[b] = stage.free_s + buckets_[b]->optimizer_s;
  }
  refresh(s);
}

}  // namespace cotune
