/// Reads jobs.yaml (docs/jobs-file.md): every key, value and combination is checked against the option table
/// (option_table.h) and all mistakes are reported at once.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "jobs/job.h"

namespace cotune {

/// `train` refuses what has no weights or no data (`model.weights: none`, `data.lengths`); `plan` accepts them.
enum class Purpose { train, plan };

/// Reads, merges `defaults` into every job, and checks.
///
/// overrides: `key=value` texts, as given to --set, which replace what the file says: `model.path=/models/x`,
///   `run.memory=4GiB`, `defaults.train.steps=10`, `jobs[0].train.lr=1e-3`, or by name
///   `jobs.sentiment.adapter.r=4`. A value for a list or a map is written as YAML flow (`[q_proj, v_proj]`); any
///   other value is taken literally.
/// In the result, paths of inputs (model, data, adapters, templates) are absolute: relative ones are resolved
/// against the jobs file's folder, relative ones from `overrides` against the working directory. `run.output` stays
/// as written, relative to the working directory. Inputs that do not exist are mistakes.
/// Throws UserError with one line per mistake: file, line, field, what was found, what is accepted.
JobsFile read_jobs_file(const std::filesystem::path& path, const std::vector<std::string>& overrides,
                        Purpose purpose);

/// The same from text, without touching the file system: inputs are not looked for.
/// file_name: what messages call the text. folder: what relative paths are resolved against.
JobsFile parse_jobs_file(std::string_view text, const std::string& file_name, const std::filesystem::path& folder,
                         const std::vector<std::string>& overrides, Purpose purpose);

/// The effective configuration as a jobs file: every option of every job that applies to it, defaults spelled out.
/// parse_jobs_file(to_yaml(x)) == x for every x that parse_jobs_file returned.
std::string to_yaml(const JobsFile& jobs_file);

}  // namespace cotune
