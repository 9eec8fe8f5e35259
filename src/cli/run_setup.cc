#include "cli/run_setup.h"

#include <fmt/format.h>

#include "adapter/adapter_file.h"
#include "base/diagnostics.h"
#include "base/error.h"
#include "base/file.h"
#include "jobs/target_modules.h"
#include "kernels/isa.h"

namespace cotune {

namespace {

/// Names the first token that the model does not have.
void check_vocabulary(const Dataset& dataset, const ModelConfig& config, Diagnostics& diagnostics) {
  for (int64_t i = 0; i < dataset.size(); ++i) {
    for (const int32_t token : dataset.tokens(i)) {
      if (token < config.vocabulary_size) continue;
      diagnostics.add(dataset.source(), dataset.line(i), "",
                      fmt::format("holds token {}, but the model's vocabulary has {} tokens", token, config.vocabulary_size));
      return;
    }
  }
}

}  // namespace

JobData read_data(const JobSpec& job, const ModelText& text, const ModelConfig& config, Diagnostics& diagnostics) {
  const std::unique_ptr<ChatTemplate> own =
      job.data.chat_template.empty() ? nullptr : text.make_template(job.data.chat_template);
  const ChatTemplate* chat_template = own != nullptr ? own.get() : text.chat_template();
  JobData data = read_job_data(job.data, text.encoder(), chat_template, config.context_length, diagnostics);
  if (data.train.empty() && diagnostics.empty()) {
    diagnostics.add(job.data.train, 0, "", fmt::format("job `{}` has no example left to train on", job.name));
  }
  check_vocabulary(data.train, config, diagnostics);
  check_vocabulary(data.eval, config, diagnostics);
  return data;
}

std::vector<JobData> read_all_data(const JobsFile& jobs_file, const ModelText& text, const ModelConfig& config) {
  Diagnostics diagnostics;
  std::vector<JobData> data;
  for (const JobSpec& job : jobs_file.jobs) data.push_back(read_data(job, text, config, diagnostics));
  diagnostics.throw_if_any();
  return data;
}

at::ScalarType compute_dtype(const ModelSpec& model, const ComputeDevice& device) {
  if (model.dtype == "float32") return at::kFloat;
  if (model.dtype == "bfloat16") return at::kBFloat16;
  if (model.dtype == "float64") return at::kDouble;
  const bool native =
      device.is_cpu() ? kernels::cpu_features().avx512_bf16 : device.plugin->has_bf16(device.device.index());
  return native ? at::kBFloat16 : at::kFloat;
}

void check_adapters(const JobsFile& jobs_file, const ModelConfig& config) {
  Diagnostics diagnostics;
  for (const JobSpec& job : jobs_file.jobs) {
    try {
      const std::vector<AdaptedModule> modules = resolve_target_modules(job, config.layer_count);
      if (job.adapter.init_from.empty()) continue;
      if (read_adapter_setup(job.adapter.init_from, config).modules != modules) {
        diagnostics.add(job.file, job.line, "jobs." + job.name + ".adapter.init_from",
                        "adapts other modules, or with other ranks or alphas, than the job");
      }
    } catch (const UserError& error) {
      diagnostics.add("", 0, "", error.what());
    }
  }
  diagnostics.throw_if_any();
}

}  // namespace cotune
