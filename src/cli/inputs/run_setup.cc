#include "cli/inputs/run_setup.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "base/counted.h"
#include "base/diagnostics.h"
#include "base/error.h"
#include "base/file.h"
#include "cli/inputs/emulated_run.h"
#include "cli/inputs/model_of_adapter.h"
#include "data/dataset_reader.h"
#include "jobs/emulated_file.h"
#include "jobs/hub_cache.h"
#include "jobs/module_pattern.h"
#include "jobs/target_modules.h"
#include "train/adapter_folder.h"

namespace cotune {

namespace {

/// The field of a file's records in which an example's token stands; "" where its text gives the token. With the place in the record where
/// no example of the file begins at another token than its record.
std::string token_field(const FileReport& file, Truncation truncation, size_t index) {
  if (file.format != DataFormat::tokens) return "";
  const bool may_be_moved = file.padded > 0 || (truncation == Truncation::left && file.truncated > 0);
  return may_be_moved ? "input_ids" : fmt::format("input_ids[{}]", index);
}

/// Names the first tokens that the model does not have, one for each example, and counts the other examples. files: those of the examples.
void check_vocabulary(const Dataset& dataset, const std::vector<FileReport>& files, Truncation truncation, const ModelConfig& config,
                      Diagnostics& mistakes) {
  if (dataset.largest_token() < config.vocabulary_size) return;
  constexpr int64_t most = 3;
  int64_t count = 0;
  int last = 0;
  std::string last_file;
  for (int64_t i = 0; i < dataset.size(); ++i) {
    const std::span<const int32_t> tokens = dataset.tokens(i);
    const auto foreign = std::find_if(tokens.begin(), tokens.end(),
                                      [&](int32_t token) { return token >= config.vocabulary_size; });
    if (foreign == tokens.end()) continue;
    last = dataset.line(i);
    last_file = dataset.source(i);
    if (++count > most) continue;
    const auto file = std::ranges::find(files, last_file, &FileReport::file);
    COTUNE_CHECK(file != files.end(), "{} is none of the files that were read", last_file);
    const std::string field = token_field(*file, truncation, static_cast<size_t>(foreign - tokens.begin()));
    mistakes.add(last_file, last, field,
                 fmt::format("{} {}; accepted: 0 to {}, the model's vocabulary", field.empty() ? "holds token" : "found", *foreign,
                             config.vocabulary_size - 1));
  }
  if (count > most) {
    mistakes.add(last_file, last, "",
                 fmt::format("and {} more such examples, this is the last", count - most));
  }
}

void add(const OptionPlace& place, const std::string& message, Diagnostics& mistakes) {
  mistakes.add(place.file, place.line, place.field, message);
}

/// Options that were given and would do nothing with these data.
void check_use(const JobSpec& job, const JobData& data, Diagnostics& mistakes) {
  const auto holds = [&data](std::initializer_list<DataFormat> formats) {
    return std::any_of(data.files.begin(), data.files.end(), [&formats](const FileReport& file) {
      return std::find(formats.begin(), formats.end(), file.format) != formats.end();
    });
  };
  const OptionPlace chat_template = job.place_of("data.chat_template");
  const bool has_chats = std::any_of(data.files.begin(), data.files.end(), [](const FileReport& file) { return file.chats > 0; });
  if (!job.data.chat_template.empty() && !chat_template.is_default && !has_chats) {
    add(chat_template, "has no effect: the job's data hold no chats (`messages` or `conversations`)", mistakes);
  }
  const bool has_prompts = holds({DataFormat::messages, DataFormat::sharegpt, DataFormat::completion, DataFormat::alpaca});
  if (job.data.train_on_prompt && !has_prompts) {
    add(job.place_of("data.train_on_prompt"),
        "has no effect: the job's data hold no prompts; `text` is learned as a whole, `labels` say it of `tokens`", mistakes);
  }
  const OptionPlace special_tokens = job.place_of("data.special_tokens");
  const bool has_texts = std::ranges::any_of(data.files, [](const FileReport& file) {
    const bool is_of_texts = file.format == DataFormat::completion || file.format == DataFormat::alpaca || file.format == DataFormat::text;
    return is_of_texts && file.chats < file.records;
  });
  if (job.data.special_tokens == SpecialTokens::parsed && !special_tokens.is_default && !has_texts) {
    add(special_tokens, "has no effect: the job's data hold no texts (`text`, `prompt` and `completion`, `instruction` and `output`)", mistakes);
  }
  if (job.data.eval_fraction > 0 && data.eval.empty() && !data.train.empty()) {
    add(job.place_of("data.eval_fraction"),
        fmt::format("{:g} holds out none of the {} of {}: give a larger share, or a file of "
                    "held-out examples "
                    "(data.eval)",
                    job.data.eval_fraction, counted(data.train.size(), "example"), names_of_train_files(job.data)),
        mistakes);
  }
}

/// Where its section holds a mistake, what it says of the model's modules is checked; all stand in for the targets where it names none.
void check_adapter(JobSpec job, const JobsFileReading::Sound& sound, const ModelConfig& config, const std::filesystem::path& model,
                   Diagnostics& mistakes) {
  if (!sound.adapter && job.adapter.target_modules.empty()) job.adapter.target_modules = {std::string(all_linear)};
  try {
    const std::vector<AdaptedModule> modules = resolve_target_modules(job, config.layer_count);
    if (sound.init_from) check_initial_adapter(job, modules, config, model);
  } catch (const UserError& error) {
    mistakes.add(error);
  }
}

std::unique_ptr<ModelText> read_text(const ModelParts& model, Diagnostics& mistakes) {
  if (!model.has_tokenizer) return nullptr;
  try {
    return std::make_unique<ModelText>(model.files);
  } catch (const UserError& error) {
    mistakes.add(error);
    return nullptr;
  }
}

/// On an emulated device without weights.
ModelParts find_model_for(const JobsFile& jobs_file, Diagnostics& mistakes) {
  if (emulated_file(jobs_file.run.device).empty()) return find_model(jobs_file.model, mistakes);
  try {
    return {.files = model_without_weights(jobs_file.model), .has_config = true, .has_tokenizer = true};
  } catch (const UserError& error) {
    mistakes.add(error);
    return {};
  }
}

/// The first candidate of its sweep that has the same data: they are read once, and what is wrong with them is said once.
std::optional<size_t> earlier_candidate_with_data(const std::vector<JobSpec>& jobs, size_t index) {
  const JobSpec& job = jobs[index];
  if (job.sweep.of.empty()) return std::nullopt;
  const bool draws = !job.data.lengths.empty();  // by the job's seed
  for (size_t i = 0; i < index && !draws; ++i) {
    if (jobs[i].sweep.of == job.sweep.of && jobs[i].data == job.data) return i;
  }
  return std::nullopt;
}

/// Of jobs that start from an adapter.
void warn_of_other_models(const JobsFileReading& reading, const ModelFiles& model) {
  BaseModelCheck base(model);
  std::set<std::string> told;
  for (size_t i = 0; i < reading.jobs_file.jobs.size(); ++i) {
    const JobSpec& job = reading.jobs_file.jobs[i];
    if (!reading.jobs[i].init_from || !told.insert(job.adapter.init_from).second) continue;
    warn_of_other_model(base, find_adapter_folder(job.adapter.init_from), resolve_target_modules(job, model.config.layer_count));
  }
}

}  // namespace

OptionPlace place_of_model(const JobsFileReading& reading) {
  for (const char* option : {"model.path", "model.config"}) {
    if (const auto given = reading.model_places.find(option); given != reading.model_places.end()) return given->second;
  }
  return {};
}

JobData read_data(const JobSpec& job, const ModelText& text, const ModelConfig& config, const DataReading& reading,
                  Diagnostics& mistakes, const OptionPlace& model_place) {
  const size_t before = mistakes.size();
  if (!text.has_tokenizer() && has_texts(job.data)) {
    try {
      text.encoder().need_tokenizer();
    } catch (const UserError& error) {
      add(model_place, error.what(), mistakes);
    }
    check_records(job.data, mistakes);
    return {};
  }
  std::unique_ptr<ChatTemplate> own;
  if (!job.data.chat_template.empty()) {
    try {
      own = text.make_template(job.data.chat_template);
    } catch (const UserError& error) {
      mistakes.add(error);
      check_records(job.data, mistakes);
      return {};
    }
  }
  const ChatTemplate* chat_template = own != nullptr ? own.get() : text.chat_template();
  JobData data = reading.read({job.data, text.encoder(), chat_template, config.context_length, &job}, mistakes);
  for (const Dataset* part : {&data.train, &data.eval}) check_vocabulary(*part, data.files, job.data.truncation, config, mistakes);
  if (mistakes.size() > before || job.data.train.empty()) return data;
  if (data.train.empty()) {
    add(job.place_of("data.eval_fraction"),
        fmt::format("{:g} holds out all {} of {}, and none is left to train on", job.data.eval_fraction, counted(data.eval.size(), "example"),
                    names_of_train_files(job.data)),
        mistakes);
  }
  check_use(job, data, mistakes);
  return data;
}

void check_preset(JobsFileReading& reading, Diagnostics& mistakes) {
  const std::string& name = reading.jobs_file.model.config;
  const std::filesystem::path path(name);
  if (!reading.model || name.empty() || path.has_parent_path() || std::filesystem::exists(path_or_snapshot(path))) return;
  try {
    model_preset(name);
  } catch (const UserError& error) {
    const OptionPlace& place = reading.model_places.at("model.config");
    mistakes.add(place.file, place.line, place.field, error.what());
    reading.model = false;
  }
}

RunInputs read_inputs(JobsFileReading reading, const DataReading& data, Diagnostics& mistakes) {
  check_preset(reading, mistakes);
  RunInputs inputs;
  if (reading.model) inputs.model = find_model_for(reading.jobs_file, mistakes);
  if (inputs.model.has_config) inputs.text = read_text(inputs.model, mistakes);
  inputs.data = read_jobs(reading, inputs.model.has_config ? &inputs.model.files.config : nullptr, inputs.text.get(), data,
                          mistakes);
  if (mistakes.empty()) {
    inputs.initial_adapters = initial_adapters(reading);
    warn_of_other_models(reading, inputs.model.files);
  }
  inputs.jobs_file = std::move(reading.jobs_file);
  return inputs;
}

std::vector<JobData> read_jobs(const JobsFileReading& reading, const ModelConfig* config, const ModelText* text,
                               const DataReading& reader, Diagnostics& mistakes) {
  std::vector<JobData> all;
  for (size_t i = 0; i < reading.jobs_file.jobs.size(); ++i) {
    const JobSpec& job = reading.jobs_file.jobs[i];
    JobData& data = all.emplace_back();
    if (config != nullptr) check_adapter(job, reading.jobs[i], *config, reading.jobs_file.model.path, mistakes);
    if (!reading.jobs[i].data && !reading.jobs[i].records) continue;
    if (const std::optional<size_t> same = earlier_candidate_with_data(reading.jobs_file.jobs, i)) {
      data = all[*same];
      continue;
    }
    if (!job.data.lengths.empty()) {
      if (config == nullptr) {
        given_lengths(job, mistakes);
      } else if (reading.jobs[i].data) {
        data = data_of_lengths(job, *config, mistakes);
      }
    } else if (reading.jobs[i].data && text != nullptr) {
      data = read_data(job, *text, *config, reader, mistakes, place_of_model(reading));
    } else {
      check_records(job.data, mistakes);
    }
  }
  return all;
}

std::map<std::string, std::string> initial_adapters(const JobsFileReading& reading) {
  std::map<std::string, std::string> by_path, by_job;
  for (size_t i = 0; i < reading.jobs_file.jobs.size(); ++i) {
    if (!reading.jobs[i].init_from) continue;
    const JobSpec& job = reading.jobs_file.jobs[i];
    std::string& checksum = by_path[job.adapter.init_from];  // candidates of a sweep have the same
    if (checksum.empty()) checksum = adapter_checksum(find_adapter_folder(job.adapter.init_from));
    by_job[job.name] = checksum;
  }
  return by_job;
}

std::unique_ptr<TrainingJob> make_job(size_t index, const JobSpec& spec, JobData data, const std::filesystem::path& run_folder,
                                      const ModelFiles& model, at::ScalarType compute, const ComputeDevice& device) {
  return std::make_unique<TrainingJob>(static_cast<int32_t>(index), spec, std::move(data), model.config, compute, device.device,
                                       model.path.string(), run_folder / "jobs" / spec.name);
}

void check_rungs(const std::vector<std::unique_ptr<TrainingJob>>& jobs, Diagnostics& mistakes) {
  std::map<std::string, const TrainingJob*> longest;
  for (const auto& job : jobs) {
    const SweepSpec& sweep = job->spec().sweep;
    if (sweep.of.empty() || !sweep.halving.is_on()) continue;
    const TrainingJob*& own = longest[sweep.of];
    if (own == nullptr || job->total_steps() > own->total_steps()) own = job.get();
  }
  for (const auto& [name, job] : longest) {
    if (!job->rungs().empty()) continue;
    const HalvingSpec& halving = job->spec().sweep.halving;
    add(job->spec().place_of(halving.first_steps > 0 ? "sweep.halving.first_steps" : "sweep.halving.first_fraction"),
        fmt::format("no candidate of `{}` comes to a rung: they have at most {}", name, counted(job->total_steps(), "step")), mistakes);
  }
}

}  // namespace cotune
