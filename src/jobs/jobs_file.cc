#include "jobs/jobs_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/home_folder.h"
#include "jobs/base_name.h"
#include "jobs/emulated_file.h"
#include "jobs/hub_cache.h"
#include "jobs/job_layers.h"
#include "jobs/merge_options.h"
#include "jobs/option_value.h"
#include "jobs/parallel.h"
#include "jobs/sweep_candidates.h"
#include "jobs/yaml_document.h"

namespace cotune {

namespace {

namespace fs = std::filesystem;

constexpr int64_t largest_batch = 65536;

/// Builds the result from the layers, checking what no single option can check.
class JobsFileBuilder {
 public:
  JobsFileBuilder(std::string file_name, const fs::path& folder, fs::path working_directory, Purpose purpose, bool look_for_inputs,
                  bool is_record, HasCheckpoint has_checkpoint, std::string joined_device, MistakeList& mistakes)
      : file_(std::move(file_name)),
        folder_(folder.empty() ? fs::current_path() : fs::absolute(folder)),
        working_directory_(std::move(working_directory)),
        purpose_(purpose),
        look_for_inputs_(look_for_inputs),
        is_record_(is_record),
        has_checkpoint_(std::move(has_checkpoint)),
        joined_device_(std::move(joined_device)),
        mistakes_(mistakes) {}

  JobsFileReading build(const JobsFileLayers& layers) {
    JobsFileReading result;
    for (const OptionLayer* layer : {&layers.top, &layers.top_overrides, &layers.defaults, &layers.defaults_overrides}) {
      note_harmless(*layer);
    }
    for (const JobLayers& job : layers.jobs) {
      note_harmless(job.own);
      note_harmless(job.overrides);
    }
    read_top(layers, result);
    for (const JobLayers& job : layers.jobs) result.jobs_file.jobs.push_back(read_job(job, layers, result.jobs_file.run.output));
    report_unused_defaults(layers.defaults);
    report_unused_defaults(layers.defaults_overrides);
    result.model = is_sound({"model", "base_model"});
    result.run = is_sound({"run"});
    for (size_t i = 0; i < layers.jobs.size(); ++i) {
      const JobSpec& job = result.jobs_file.jobs[i];
      const size_t place = layers.jobs[i].place;
      const std::string& given_name = job.sweep.of.empty() ? job.name : job.sweep.of;
      const bool is_sweep_sound = is_sound({fmt::format("jobs[{}].sweep", place), fmt::format("jobs.{}.sweep", given_name)});
      const auto section = [&](const char* key) {
        return is_sweep_sound && is_sound({fmt::format("jobs[{}].{}", place, key), fmt::format("jobs.{}.{}", given_name, key),
                                           fmt::format("defaults.{}", key)});
      };
      const bool is_adapter_sound = section("adapter");
      result.jobs.push_back({.data = section("data"),
                             .records = is_sweep_sound && are_records_known_[i],
                             .adapter = is_adapter_sound,
                             .init_from = is_adapter_sound && !job.adapter.init_from.empty() && !goes_on_[i]});
    }
    return result;
  }

 private:
  /// Notes mistaken options without which the rest of their section can be read all the same, by their default values.
  void note_harmless(const OptionLayer& layer) {
    static const std::set<std::string> paths = {"model.dtype",     "model.seed",         "data.max_length",
                                                "data.truncation", "data.eval_fraction", "data.train_on_prompt", "data.special_tokens"};
    for (const auto& [option, given] : layer) {
      if (given.is_mistaken && paths.contains(option->path())) harmless_.insert(given.field);
    }
  }

  /// Whether no mistake was found at any of the fields or below, but for harmless ones.
  bool is_sound(const std::vector<std::string>& fields) const {
    if (mistakes_.is_full()) return false;
    for (size_t item = 0; item < mistakes_.items().size(); ++item) {
      const std::string& mistaken = mistakes_.items()[item].field;
      if (harmless_.contains(mistaken) || mistakes_.is_superfluous(item)) continue;
      const auto is_at = [&](const std::string& field) { return mistaken == field || mistaken.starts_with(field + "."); };
      if (std::ranges::any_of(fields, is_at)) return false;
    }
    return true;
  }

  /// Whether what was given of these options is sound.
  bool are_sound(const OptionLayer& merged, std::initializer_list<const char*> options) const {
    if (mistakes_.empty()) return true;
    return std::ranges::all_of(options, [&](const char* option) {
      const GivenOption* given = find_given(merged, option);
      return given == nullptr || (!given->is_mistaken && is_sound({given->field}));
    });
  }

  void read_top(const JobsFileLayers& layers, JobsFileReading& reading) {
    JobsFile& result = reading.jobs_file;
    OptionLayer merged = merge_layers({&layers.top, &layers.top_overrides}, mistakes_, used_);
    for (const auto& [option, given] : merged) {
      if (option->section == Section::run) reading.run_places[option->path()] = {given.file, given.line, given.field};
      if (option->section == Section::model) reading.model_places[option->path()] = {given.file, given.line, given.field};
    }
    resolve_paths(merged, false);
    set_options(merged, {&result.model, &result.run, nullptr}, mistakes_, used_);
    result.run.output = with_home_folder(result.run.output);
    result.run.data_cache = with_home_folder(result.run.data_cache);
    check_chunks(merged, result.run);
    set_ranks(merged, result.run);
    const std::string& device = joined_device_.empty() ? result.run.device : joined_device_;
    computes_nothing_ = purpose_ == Purpose::plan || !emulated_file(device).empty();
    const GivenOption* path = find_given(merged, "model.path");
    const GivenOption* config = find_given(merged, "model.config");
    const GivenOption* weights = find_given(merged, "model.weights");
    if (path == nullptr && config == nullptr) {
      if (purpose_ == Purpose::join) return;
      mistakes_.add(file_, 0, "model", fmt::format("`path` is missing: {}", accepted_models));
    } else if (weights != nullptr && weights->is_mistaken) {
      return;
    } else if (path != nullptr && result.model.weights != "file") {
      mistakes_.add(*weights, fmt::format("`{}` needs `config` in place of `path`", result.model.weights));
    } else if (config != nullptr && result.model.weights == "file") {
      mistakes_.add(weights != nullptr ? *weights : *config,
                    "`config` has no weights: set `weights: random` or `none`");
    } else if (!computes_nothing_ && result.model.weights == "none") {
      mistakes_.add(*weights,
                    "training needs weights, got none; `cotune plan`, `cotune simulate` and an emulated device do without");
    }
  }

  JobSpec read_job(const JobLayers& layers, const JobsFileLayers& all, const std::string& output) {
    ++job_count_;
    OptionLayer merged =
        merge_layers({&all.defaults, &all.defaults_overrides, &layers.own, &layers.overrides}, mistakes_, used_);
    if (is_record_) leave_out_what_had_no_effect(merged);
    goes_on_.push_back(goes_on_from_checkpoint(merged, output));
    const std::vector<const Option*> missing = resolve_paths(merged, goes_on_.back());
    JobSpec job;
    job.file = file_;
    job.line = layers.line;
    const OptionTarget target{nullptr, nullptr, &job};
    set_options(merged, target, mistakes_, used_);
    for (const Option* option : missing) option->set(target, default_value(*option));
    for (const auto& [option, given] : merged) {
      job.places[option->path()] = {given.file, given.line, given.field, given.level < OptionLevel::job};
    }
    const std::string field = fmt::format("jobs[{}]", layers.place);
    check_name(merged, field, job);
    check_data(merged, field, job);
    check_batch(merged, job);
    check_sweep(merged, job);
    are_records_known_.push_back(are_sound(merged, {"data.train", "data.eval", "data.format", "data.max_examples", "data.lengths"}));
    if (job.train.steps == 0 && job.train.epochs == 0) job.train.epochs = 1;
    return job;
  }

  /// Earlier versions recorded it beside init_from.
  static void leave_out_what_had_no_effect(OptionLayer& merged) {
    if (find_given(merged, "adapter.init_from") == nullptr) return;
    std::erase_if(merged, [](const auto& entry) { return entry.first->path() == "adapter.selection_batches"; });
  }

  bool goes_on_from_checkpoint(const OptionLayer& merged, const std::string& output) const {
    const GivenOption* name = find_given(merged, "name");
    return has_checkpoint_ && name != nullptr && !name->is_mistaken && has_checkpoint_(output, std::get<std::string>(name->value));
  }

  void check_name(const OptionLayer& merged, const std::string& field, const JobSpec& job) {
    const GivenOption* given = find_given(merged, "name");
    if (given == nullptr) {
      mistakes_.add(file_, job.line, field, "`name` is missing");
    } else if (!is_record_ && (job.name == base_name || job.sweep.of == base_name)) {
      mistakes_.add(*given, fmt::format("`{}` is reserved for the model without an adapter: give the job another name", base_name));
    } else if (!given->is_mistaken) {
      const auto [first, is_new] = names_.emplace(job.name, field);
      if (!is_new) mistakes_.add(*given, fmt::format("`{}` is also the name of {}", job.name, first->second));
    }
  }

  void check_data(const OptionLayer& merged, const std::string& field, const JobSpec& job) {
    const GivenOption* lengths = find_given(merged, "data.lengths");
    if (lengths == nullptr && find_given(merged, "data.train") == nullptr) {
      mistakes_.add(file_, job.line, field + ".data",
                    !computes_nothing_
                        ? "`train` is missing: a JSONL file"
                        : "`train` or `lengths` is missing: a JSONL file, or example lengths");
    } else if (lengths != nullptr && !computes_nothing_) {
      mistakes_.add(*lengths, "training needs data.train; `cotune plan`, `cotune simulate` and an emulated device take lengths");
    }
  }

  /// run.parallel says how many ranks there are where run.ranks does not.
  void set_ranks(const OptionLayer& merged, RunSpec& run) {
    const int64_t ranks = parallel_of(run).ranks();
    const GivenOption* given = find_given(merged, "run.ranks");
    if (given != nullptr && !given->is_mistaken && run.ranks != ranks) {
      mistakes_.add(*find_given(merged, "run.parallel"),
                    fmt::format("`{}` is {} ranks, but run.ranks is {}: give one of them, or both alike", run.parallel, ranks, run.ranks));
    }
    run.ranks = ranks;
  }

  void check_chunks(const OptionLayer& merged, const RunSpec& run) {
    if (run.layout != Layout::chunked || run.chunk_size <= run.token_budget) return;
    const GivenOption* given = find_given(merged, "run.chunk_size");
    COTUNE_CHECK(given != nullptr, "the default is below every token budget");
    mistakes_.add(*given, fmt::format("must be at most run.token_budget, {}, got {}", run.token_budget,
                                      run.chunk_size));
  }

  void check_batch(const OptionLayer& merged, const JobSpec& job) {
    const GivenOption* accumulation = find_given(merged, "train.gradient_accumulation_steps");
    if (accumulation == nullptr) return;
    if (find_given(merged, "train.micro_batch_size") == nullptr) {
      mistakes_.add(*accumulation,
                    "needs `micro_batch_size`; `batch_size` counts all examples of an optimizer step");
    } else if (job.train.batch_size > largest_batch) {
      mistakes_.add(*accumulation,
                    fmt::format("micro_batch_size × gradient_accumulation_steps must be at most {}, got {}",
                                largest_batch, job.train.batch_size));
    }
  }

  /// A candidate's held-out loss can be compared, and by the rules of the others.
  void check_sweep(const OptionLayer& merged, const JobSpec& job) {
    if (job.sweep.of.empty()) return;
    const GivenOption& given = *find_given(merged, "sweep.of");
    const GivenOption *file = find_given(merged, "data.eval"), *fraction = find_given(merged, "data.eval_fraction");
    const bool is_given = file != nullptr && (file->is_mistaken || !is_unset(file->value));  // be it a file that is not there
    const bool is_mistaken = fraction != nullptr && fraction->is_mistaken;
    if (!is_given && !is_mistaken && !holds_out_examples(job.data) && job.data.lengths.empty()) {
      mistakes_.add(given, "candidates are compared by what they make of held-out examples: the job needs data.eval or data.eval_fraction above 0");
    }
    SweepSpec rules = job.sweep;
    rules.values.clear();
    const auto [first, is_new] = sweeps_.emplace(rules.of, rules);
    if (!is_new && first->second != rules) {
      mistakes_.add(given, fmt::format("candidates of one sweep, `{}`, must have equal metric, max_concurrent and halving", rules.of));
    }
  }

  /// Makes the paths of inputs absolute, and looks for them where that is asked for. Returns those that do
  /// not exist, or are no files where data are. goes_on: the job has a checkpoint, and needs no init_from.
  std::vector<const Option*> resolve_paths(OptionLayer& merged, bool goes_on) {
    static const std::set<std::string> separate = {"data.train", "data.eval", "adapter.init_from"};
    std::vector<const Option*> missing;
    for (auto& [option, given] : merged) {
      if (given.is_mistaken) continue;
      const bool may_be_gone = goes_on && option->path() == "adapter.init_from";
      bool found = true;
      for (std::string* path : paths_in(*option, given)) found = resolve_path(*option, given, may_be_gone, *path) && found;
      if (!found && separate.contains(option->path())) {
        missing.push_back(option);
        harmless_.insert(given.field);
      }
    }
    return missing;
  }

  /// The parts of a value that name files or folders.
  std::vector<std::string*> paths_in(const Option& option, GivenOption& given) {
    const OptionType type = option.accepted.type;
    std::vector<std::string*> paths;
    if (auto* files = std::get_if<std::vector<TrainFile>>(&given.value)) {
      for (TrainFile& file : *files) paths.push_back(&file.path);
      return paths;
    }
    auto* text = std::get_if<std::string>(&given.value);
    if (text != nullptr && option.accepted.may_be_emulated) resolve_emulated(given, *text);
    if (auto* lengths = std::get_if<LengthsSpec>(&given.value)) text = &lengths->histogram;
    const bool may_be_path = type == OptionType::path || type == OptionType::name_or_path || type == OptionType::lengths;
    if (!may_be_path || text == nullptr || text->empty()) return paths;
    const bool is_path = type == OptionType::path || text->find('/') != std::string::npos || text->ends_with(".json") ||
                         (look_for_inputs_ && exists(place_of(given, *text)));
    if (is_path) paths.push_back(text);
    return paths;
  }

  static bool exists(const fs::path& path) {
    std::error_code unreadable;
    return fs::exists(path, unreadable);
  }

  /// Relative to the jobs file's folder, or to the working directory where it was given on the command line.
  fs::path place_of(const GivenOption& given, const std::string& text) const {
    return ((given.file == file_ ? folder_ : working_directory_) / with_home_folder(text)).lexically_normal();
  }

  /// False, with the mistake reported, where it is looked for and does not exist, or is no file where data are.
  bool resolve_path(const Option& option, const GivenOption& given, bool may_be_gone, std::string& text) {
    const fs::path full = place_of(given, text);
    std::error_code unreadable;
    bool found = !look_for_inputs_ || fs::exists(full, unreadable);
    if (!found) {
      const std::optional<HubName> name = option.accepted.may_be_hub_name ? parse_hub_name(text) : std::nullopt;
      if (const auto snapshot = name ? find_in_hub_cache(*name) : std::nullopt) {
        return resolve_snapshot(option, given, *name, fs::absolute(*snapshot), text);
      }
      found = may_be_gone;
    }
    if (!found) {
      const std::string hint = option.accepted.may_be_hub_name ? hub_cache_hint(text) : "";
      const std::string reason = unreadable ? fmt::format("{}: {}", full.string(), unreadable.message())
                                            : fmt::format("no such file or folder: {}{}", full.string(), hint);
      mistakes_.add(given, reason);
    }
    if (found && look_for_inputs_ && is_data_file(option) && !fs::is_regular_file(full, unreadable)) {
      mistakes_.add(given, fmt::format("{}: {}; accepted: a file of JSONL, plain or compressed by gzip or zstd, or of Parquet{}",
                                       fs::is_directory(full, unreadable) ? "is a folder" : "is not a regular file", full.string(),
                                       option.accepted.type == OptionType::files ? ", or a list of such files" : ""));
      found = false;
    }
    text = full.string();
    return found;
  }

  static bool is_data_file(const Option& option) { return option.section == Section::data && (option.key == "train" || option.key == "eval"); }

  bool resolve_snapshot(const Option& option, const GivenOption& given, const HubName& name, const fs::path& snapshot, std::string& text) {
    text = snapshot.string();
    if (option.section != Section::model) return true;
    try {
      text = model_in_snapshot(snapshot, name).string();
    } catch (const UserError& error) {
      mistakes_.add(given, error.what());
      return false;
    }
    return true;
  }

  void resolve_emulated(const GivenOption& given, std::string& text) {
    const std::string file = emulated_file(text);
    if (file.empty()) return;
    const fs::path full = place_of(given, file);
    std::error_code unreadable;
    if (look_for_inputs_ && !fs::exists(full, unreadable)) mistakes_.add(given, fmt::format("no such file: {}", full.string()));
    text = fmt::format("{}:{}", emulated_device, full.string());
  }

  void report_unused_defaults(const OptionLayer& defaults) {
    if (job_count_ == 0) return;
    for (const auto& [option, given] : defaults) {
      if (!option->condition || used_.contains(option) || given.is_mistaken || is_unset(given.value) ||
          given.is_null) {
        continue;
      }
      mistakes_.add_superfluous(given.file, given.line, given.field,
                                fmt::format("`{}` has an effect only {}, and no job is of that kind", option->key, option->condition->summary));
    }
  }

  std::string file_;
  fs::path folder_, working_directory_;
  Purpose purpose_;
  bool computes_nothing_ = false;  ///< so neither weights nor data are needed
  bool look_for_inputs_;
  bool is_record_;  ///< of a run, perhaps of an earlier version
  HasCheckpoint has_checkpoint_;
  std::string joined_device_;
  MistakeList& mistakes_;
  std::map<std::string, std::string> names_;
  std::map<std::string, SweepSpec> sweeps_;  ///< the rules of each, by name
  std::set<const Option*> used_;
  std::set<std::string> harmless_;       ///< fields with mistakes that leave the rest of their section to be checked
  std::vector<bool> are_records_known_;  ///< by job: what names its data files and the form of their records is sound
  std::vector<bool> goes_on_;            ///< by job: it has a checkpoint
  size_t job_count_ = 0;
};

JobsFileReading parse(std::string_view text, const std::string& file_name, const fs::path& folder,
                      const std::vector<std::string>& overrides, Purpose purpose, bool look_for_inputs, MistakeList& mistakes,
                      const fs::path& working_directory = fs::current_path(), bool is_record = false,
                      const HasCheckpoint& has_checkpoint = {}, const std::string& joined_device = {}) {
  const YAML::Node document = load_yaml_document(text, file_name, is_record ? largest_configuration : largest_jobs_file);
  JobsFileLayers layers = read_layers(document, file_name, mistakes);
  add_overrides(overrides, layers, mistakes);
  expand_sweeps(layers, mistakes);
  return JobsFileBuilder(file_name, folder, working_directory, purpose, look_for_inputs, is_record, has_checkpoint, joined_device, mistakes)
      .build(layers);
}

}  // namespace

JobsFile read_jobs_file(const fs::path& path, const std::vector<std::string>& overrides, Purpose purpose) {
  MistakeList mistakes;
  JobsFileReading reading =
      parse(read_file(path), path.string(), path.parent_path(), overrides, purpose, true, mistakes);
  mistakes.throw_if_any();
  return std::move(reading.jobs_file);
}

JobsFileReading read_jobs_file(const fs::path& path, const std::vector<std::string>& overrides,
                               Purpose purpose, Diagnostics& diagnostics, const HasCheckpoint& has_checkpoint) {
  MistakeList mistakes;
  JobsFileReading reading;
  try {
    reading =
        parse(read_file(path), path.string(), path.parent_path(), overrides, purpose, true, mistakes, fs::current_path(), false, has_checkpoint);
    mistakes.throw_if_any();
  } catch (const UserError& error) {
    diagnostics.add(error);
  }
  return reading;
}

JobsFileReading read_jobs_text(const JobsText& text, const std::vector<std::string>& overrides, Purpose purpose,
                               Diagnostics& diagnostics) {
  MistakeList mistakes;
  JobsFileReading reading;
  try {
    reading = parse(text.text, text.file_name, text.folder, overrides, purpose, true, mistakes, text.working_directory, false, {},
                    text.joined_device);
    mistakes.throw_if_any();
  } catch (const UserError& error) {
    diagnostics.add(error);
  }
  return reading;
}

JobsFile parse_jobs_file(std::string_view text, const std::string& file_name, const fs::path& folder,
                         const std::vector<std::string>& overrides, Purpose purpose) {
  MistakeList mistakes;
  JobsFileReading reading = parse(text, file_name, folder, overrides, purpose, false, mistakes);
  mistakes.throw_if_any();
  return std::move(reading.jobs_file);
}

JobsFile parse_configuration(std::string_view text, const std::string& file_name, Purpose purpose) {
  MistakeList mistakes;
  JobsFileReading reading = parse(text, file_name, {}, {}, purpose, false, mistakes, fs::current_path(), true);
  mistakes.throw_if_any();
  return std::move(reading.jobs_file);
}

}  // namespace cotune
