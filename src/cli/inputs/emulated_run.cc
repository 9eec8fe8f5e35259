#include "cli/inputs/emulated_run.h"

#include <fmt/format.h>

#include <algorithm>

#include "jobs/adapter_methods.h"
#include "plan/shapes/job_shape.h"

namespace cotune {
namespace {

constexpr int64_t drawn_examples = 10000;
constexpr double most_made_tokens = 1 << 28;  // of given lengths; five bytes each

}  // namespace

void check_emulated_job(const JobSpec& job, Diagnostics& mistakes) {
  const auto refuse = [&](const char* option, const std::string& why) {
    const OptionPlace place = job.place_of(option);
    mistakes.add(place.file, place.line, place.field, fmt::format("{}, and on an emulated device nothing is trained", why));
  };
  if (selects_entries(job.adapter.method)) refuse("adapter.method", "diff_pruning chooses its entries by their gradients");
  if (!job.adapter.init_from.empty()) refuse("adapter.init_from", "goes on with an adapter");
  if (job.train.early_stopping_patience > 0) refuse("train.early_stopping_patience", "stops by held-out losses");
  if (job.sweep.halving.is_on()) {
    refuse(job.sweep.halving.first_steps > 0 ? "sweep.halving.first_steps" : "sweep.halving.first_fraction", "halving goes by held-out losses");
  }
  if (job.train.load_best) refuse("train.load_best_model_at_end", "leaves the adapter of the lowest held-out loss");
}

void check_emulated_run(const std::map<std::string, OptionPlace>& run_places, Diagnostics& mistakes) {
  const auto refuse = [&](const char* option, const char* why) {
    const auto given = run_places.find(option);
    if (given != run_places.end()) mistakes.add(given->second.file, given->second.line, given->second.field, why);
  };
  refuse("run.memory", "has no effect on an emulated device: weights, adapters and activations take no memory; `cotune plan` says what would fit");
  refuse("run.threads", "has no effect on an emulated device, where nothing is computed");
  refuse("run.portable_kernels", "has no effect on an emulated device, where nothing is computed");
}

JobData data_of_lengths(const JobSpec& job, const ModelConfig& config, Diagnostics& mistakes) {
  double rows = 0, all_tokens = 0;
  for (const auto& [length, count] : job.data.lengths.counts) {
    rows += static_cast<double>(count);
    all_tokens += static_cast<double>(count) * static_cast<double>(length);
  }
  if (all_tokens > most_made_tokens) {
    const OptionPlace place = job.place_of("data.lengths");
    mistakes.add(place.file, place.line, place.field,
                 fmt::format("found {:.0f} rows of {:.4g} tokens in all; accepted on an emulated device, which makes them: at most {:.0f} tokens",
                             rows, all_tokens, most_made_tokens));
    return {};
  }
  std::vector<int64_t> lengths;
  for (const auto& [length, count] : job.data.lengths.counts) lengths.insert(lengths.end(), static_cast<size_t>(count), length);
  if (lengths.empty()) {
    const std::optional<LengthHistogram> histogram = given_lengths(job, mistakes);
    if (!histogram) return {};
    lengths = sample_lengths(*histogram, job.train.seed, drawn_examples);
  }
  const int64_t longest = job.data.max_length > 0 ? std::min(job.data.max_length, config.context_length) : config.context_length;
  JobData data;
  data.train = Dataset("data.lengths");
  for (size_t i = 0; i < lengths.size(); ++i) {
    const auto tokens = static_cast<size_t>(std::min(lengths[i], longest));
    Example example{
        .tokens = std::vector<int32_t>(tokens), .learned = std::vector<uint8_t>(tokens, 1), .source = {}, .line = static_cast<int>(i + 1)};
    example.learned.front() = 0;
    data.train.add(example);
  }
  return data;
}

}  // namespace cotune
