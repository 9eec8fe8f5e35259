#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "jobs/base_name.h"

namespace cotune {

struct NamedAdapter {
  std::string name;
  std::filesystem::path folder;  ///< empty: the model without an adapter
  bool operator==(const NamedAdapter&) const = default;
};

/// What `--adapter [NAME=]FOLDER` means, given as often as there are adapters: `base`, an adapter's folder, a job's, that of a run, which
/// stands for all of its jobs, or a name of the Hugging Face cache. An adapter is called as it is given, else like its job, else like its
/// folder; those of a run that is given a name NAME/JOB. Jobs of a run that are still choosing their entries are left out, with a line on
/// standard error, where another has an adapter. Throws UserError where two have one name, and where an adapter is called `base`.
std::vector<NamedAdapter> named_adapters(const std::vector<std::string>& given);

/// The model that --model names, or the one that the adapters are of. Throws UserError where they are of several.
std::filesystem::path model_of_adapters(const std::string& model, const std::vector<NamedAdapter>& adapters);

}  // namespace cotune
