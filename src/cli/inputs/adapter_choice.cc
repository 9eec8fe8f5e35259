#include "cli/inputs/adapter_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/abrupt_exit.h"
#include "base/error.h"
#include "base/utf8.h"
#include "cli/inputs/model_of_adapter.h"
#include "jobs/hub_cache.h"
#include "train/adapter_folder.h"

namespace cotune {
namespace {

namespace fs = std::filesystem;

/// RUN/jobs/NAME/adapter and RUN/jobs/NAME/step-7 are called NAME, and one of the Hugging Face cache as its repository.
std::string name_of_folder(const fs::path& folder) {
  if (const std::optional<HubName> of_cache = hub_name_of(folder)) return of_cache->repository;
  const fs::path whole = fs::weakly_canonical(fs::absolute(folder)), job = whole.parent_path();
  return (job.parent_path().filename() == "jobs" ? job : whole).filename().string();
}

/// "" and the whole where no name is given.
std::pair<std::string, std::string> name_and_path(const std::string& given) {
  const size_t sign = given.find('=');
  if (sign == std::string::npos || given.find('/') < sign || fs::exists(given)) return {"", given};
  if (sign == 0 || sign + 1 == given.size()) throw_user_error("--adapter: expected [NAME=]FOLDER, found `{}`", given);
  return {given.substr(0, sign), given.substr(sign + 1)};
}

void add(NamedAdapter adapter, std::vector<NamedAdapter>& adapters) {
  for (const NamedAdapter& other : adapters) {
    if (other.name != adapter.name) continue;
    if (adapter.folder.empty()) throw_user_error("--adapter: base is given twice");
    throw_user_error("--adapter: {} and {} are both called `{}`; NAME=FOLDER gives one another name", other.folder.string(),
                     adapter.folder.string(), adapter.name);
  }
  adapters.push_back(std::move(adapter));
}

}  // namespace

std::vector<NamedAdapter> named_adapters(const std::vector<std::string>& given) {
  std::vector<NamedAdapter> adapters;
  for (const std::string& each : given) {
    if (each == base_name) {
      add({base_name, {}}, adapters);
      continue;
    }
    const auto [name, path] = name_and_path(each);
    if (name == base_name) throw_user_error("--adapter: `{}`: {} is the model without an adapter; choose another name", each, base_name);
    const std::vector<JobAdapter> of_path = find_adapter_folders(path);
    const auto is_usable = [](const JobAdapter& found) { return !is_choosing_entries(found.folder); };
    const bool leaves_out = of_path.size() > 1 && std::ranges::any_of(of_path, is_usable);
    for (const JobAdapter& found : of_path) {
      if (leaves_out && !is_usable(found)) {
        write_to_standard_error(fmt::format("{}: has no adapter yet: it is still choosing its entries\n", found.job));
        continue;
      }
      std::string own = name.empty() ? found.job : found.job.empty() ? name : name + "/" + found.job;
      if (own.empty()) own = name_of_folder(found.folder);
      own = replace_invalid_utf8(own);  // answers are stored with it, as JSON
      if (own == base_name) {
        throw_user_error("--adapter: {}: would be called `{}`, which is the model without an adapter; NAME={} gives it another name",
                         found.folder.string(), base_name, each);
      }
      add({own, found.folder}, adapters);
    }
  }
  return adapters;
}

fs::path model_of_adapters(const std::string& model, const std::vector<NamedAdapter>& adapters) {
  const NamedAdapter* first = nullptr;
  fs::path path;
  for (const NamedAdapter& adapter : adapters) {
    if (adapter.folder.empty()) continue;
    const fs::path own = model_of_adapter(model, adapter.folder);
    if (first != nullptr && own != path) {
      throw_user_error("--model: is needed: {} is an adapter of {}, and {} of {}", first->folder.string(), path.string(),
                       adapter.folder.string(), own.string());
    }
    if (first == nullptr) first = &adapter;
    path = own;
  }
  return first != nullptr ? path : model_of_adapter(model, {});
}

}  // namespace cotune
