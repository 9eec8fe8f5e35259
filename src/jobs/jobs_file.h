/// Reads jobs.yaml (docs/jobs-file.md): every key, value and combination is checked against the option table
/// (option_table.h) and all mistakes are reported at once.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/diagnostics.h"
#include "jobs/job.h"

namespace cotune {

/// `train` refuses what has no weights or no data (`model.weights: none`, `data.lengths`), unless its device is emulated; `plan`
/// accepts them. `join` is `train` into a run that has its model: the file may leave it out.
enum class Purpose { train, plan, join };

/// Reads, merges `defaults` into every job, and checks.
///
/// overrides: `key=value` texts, as given to --set, which replace what the file says: `model.path=/models/x`,
///   `run.memory=4GiB`, `defaults.train.steps=10`, `jobs[0].train.lr=1e-3`, or by name
///   `jobs.sentiment.adapter.r=4`. A value for a list or a map is written as YAML flow (`[q_proj, v_proj]`);
///   any other value is taken literally. `--token-budget=512` is `run.token_budget=512` under the name that
///   messages give it.
/// In the result, paths of inputs (model, data, adapters, templates) are absolute: relative ones are resolved
/// against the jobs file's folder, relative ones from `overrides` against the working directory. Models and adapters that are
/// not there are looked for by their name in the Hugging Face cache, and become the folder there. `run.output`
/// stays as written, relative to the working directory. Inputs that do not exist are mistakes. Throws
/// UserError with one line per mistake: file, line, field, what was found, what is accepted.
JobsFile read_jobs_file(const std::filesystem::path& path, const std::vector<std::string>& overrides,
                        Purpose purpose);

/// Whether the job of that name goes on from a checkpoint in the run's output folder (RunSpec::output). What it once started from
/// may be gone then: an `init_from` that does not exist is no mistake.
using HasCheckpoint = std::function<bool(const std::string& output, const std::string& job)>;

/// A jobs file that may hold mistakes, and which of its sections can be relied on, so that what they name can be checked as
/// well: those without a mistake, but for inputs that do not exist and options whose default value does as well for that
/// (model.dtype, data.max_length, …).
struct JobsFileReading {
  struct Sound {
    bool data = false;
    bool records = false;  ///< of `data` at least the files, and how they are read
    bool adapter = false;
    bool init_from = false;  ///< of `adapter`, and it is given and needed: the job has no checkpoint to go on from
  };
  JobsFile jobs_file;  ///< what is wrong has its default value; an input that does not exist is empty
  bool model = false, run = false;
  std::map<std::string, OptionPlace> run_places;  ///< of the run's options that were given, by path: `run.layout`
  std::map<std::string, OptionPlace> model_places;  ///< likewise of the model's: `model.config`
  std::vector<Sound> jobs;                          ///< of every job
};

/// The same, with the mistakes added to `mistakes`. Of a file that cannot be read at all nothing is returned. has_checkpoint: not set: no
/// job has one.
JobsFileReading read_jobs_file(const std::filesystem::path& path, const std::vector<std::string>& overrides,
                               Purpose purpose, Diagnostics& mistakes, const HasCheckpoint& has_checkpoint = {});

/// The same from text that comes from elsewhere.
/// file_name: what messages call the text. folder, working_directory: absolute; what relative paths in it are resolved against,
/// and those in `overrides`.
struct JobsText {
  std::string text, file_name;
  std::filesystem::path folder, working_directory;
  std::string joined_device = {};  ///< run.device of the run that the jobs are to join; "": they join none, and the text has it
};
JobsFileReading read_jobs_text(const JobsText& text, const std::vector<std::string>& overrides, Purpose purpose,
                               Diagnostics& mistakes);

/// The same from text, without touching the file system: inputs are not looked for.
/// file_name: what messages call the text. folder: what relative paths are resolved against.
JobsFile parse_jobs_file(std::string_view text, const std::string& file_name,
                         const std::filesystem::path& folder, const std::vector<std::string>& overrides,
                         Purpose purpose);

/// The effective configuration as a jobs file: every option of every job that applies to it, defaults spelled
/// out. parse_jobs_file(to_yaml(x)) == x for every x that parse_jobs_file returned.
std::string to_yaml(const JobsFile& jobs_file);

/// Reads such a text, which may be larger than a jobs file, as parse_jobs_file does.
JobsFile parse_configuration(std::string_view text, const std::string& file_name, Purpose purpose);

}  // namespace cotune
