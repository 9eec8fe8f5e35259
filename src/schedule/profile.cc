#include "schedule/profile.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "schedule/adapter_shape.h"

namespace cotune {
namespace {

AdapterShape shape_of(const ModelConfig& config, const ProfiledJob& job, int32_t index, int64_t layer, Projection projection) {
  const AdapterSpec adapter{.method = job.method, .dropout = job.dropout, .density = job.density};
  return adapter_shape(index, adapter, {layer, projection, job.width, 0}, config);
}

/// Rows of the head in one microbatch: tokens before a target.
int64_t labelled_rows(const Microbatch& microbatch, double labelled_share) {
  int64_t count = 0;
  for (const Atom& atom : microbatch.atoms) {
    for (const Segment& segment : atom.segments) {
      const int64_t first = std::max(segment.position, first_target(segment.row_length, labelled_share) - 1);
      const int64_t end = std::min(segment.position + segment.length, segment.row_length - 1);
      count += std::max<int64_t>(0, end - first);
    }
  }
  return count;
}

}  // namespace

std::string model_shape_text(const ModelConfig& config) {
  return fmt::format("hidden {}, {} heads and {} kv heads of {}, intermediate {}{}, vocabulary {}{}", config.hidden_size,
                     config.head_count, config.kv_head_count, config.head_dim, config.intermediate_size,
                     config.gated ? "" : " without gate", config.vocabulary_size, config.qkv_bias ? ", qkv bias" : "");
}

std::vector<std::string> differences(const ProfileFingerprint& profile, const ProfileFingerprint& here) {
  std::vector<std::string> lines;
  const auto compare = [&](const char* field, const auto& in_profile, const auto& found) {
    if (in_profile != found) lines.push_back(fmt::format("{}: the profile has {}, here it is {}", field, in_profile, found));
  };
  compare("device", profile.device, here.device);
  compare("kernels", profile.kernels, here.kernels);
  compare("libraries", profile.libraries, here.libraries);
  compare("model", profile.model, here.model);
  compare("dtype", profile.dtype, here.dtype);
  compare("threads", profile.threads, here.threads);
  compare("ranks", profile.ranks, here.ranks);
  compare("tensor_parallel", profile.tensor_parallel, here.tensor_parallel);
  return lines;
}

void check_fingerprint(const Profile& profile, const ProfileFingerprint& here, const std::string& file_name) {
  const std::vector<std::string> lines = differences(profile.fingerprint, here);
  if (lines.empty()) return;
  throw_user_error("{}: was measured under other conditions; `cotune profile` makes one for these:\n  {}", file_name,
                   fmt::join(lines, "\n  "));
}

std::string profile_key(const Operator& op) {
  return to_string(op.kind) + (op.without_input_gradient ? alone_suffix : "");
}

int64_t first_target(int64_t row_length, double labelled_share) {
  return row_length - static_cast<int64_t>(std::ceil(labelled_share * static_cast<double>(row_length - 1)));
}

PlannedStep planned_step(const ModelConfig& config, const ProfiledShape& shape) {
  PlannedStep step;
  std::vector<BatchShape> batches;
  for (size_t i = 0; i < shape.jobs.size(); ++i) {
    const ProfiledJob& job = shape.jobs[i];
    const auto index = static_cast<int32_t>(i);
    batches.push_back({.job = index, .row_lengths = job.row_lengths});
    for (int64_t layer = 0; layer < config.layer_count; ++layer) {
      for (const Projection projection : job.projections) {
        step.adapters.push_back(shape_of(config, job, index, layer, projection));
      }
    }
  }
  step.plan = plan_step(batches, {.token_budget = shape.token_budget, .layer_count = config.layer_count});
  for (const Microbatch& microbatch : step.plan.microbatches) {
    step.labelled.push_back(labelled_rows(microbatch, shape.labelled_share));
  }
  return step;
}

int64_t most_tokens(const ModelConfig& config, const std::vector<ProfiledShape>& shapes) {
  int64_t most = 0;
  for (const ProfiledShape& shape : shapes) {
    for (const Microbatch& microbatch : planned_step(config, shape).plan.microbatches) most = std::max(most, microbatch.token_count());
  }
  return most;
}

}  // namespace cotune
