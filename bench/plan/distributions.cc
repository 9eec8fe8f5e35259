#include "distributions.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/random.h"
#include "rows.h"

namespace cotune {

const std::vector<std::string> six_tasks = {"dolly", "evol-instruct", "xsum", "commitpackft", "meetingbank", "python-code"};
const std::vector<std::string> four_tasks = {"evol-instruct", "commitpackft", "billsum", "pubmedqa"};
const std::vector<int64_t> table_lengths = {2048, 4096, 8192, 16384};

std::vector<TaskLengths> published_tasks(LengthFamily family, const std::vector<std::string>& names) {
  std::vector<TaskLengths> tasks;
  for (const PublishedDataset& dataset : published_datasets()) {
    if (!names.empty() && std::count(names.begin(), names.end(), dataset.name) == 0) continue;
    tasks.push_back({std::string(dataset.name), fitted_lengths(family, dataset.mean, dataset.skewness, dataset.longest),
                     dataset.batch});
  }
  return tasks;
}

std::vector<LengthDistribution> read_distributions() {
  const std::string path = data_file("length_distributions.json");
  std::ifstream file(path);
  const nlohmann::json document = nlohmann::json::parse(file);
  std::vector<LengthDistribution> distributions;
  for (const nlohmann::json& entry : document.at("distributions")) {
    LengthDistribution& each = distributions.emplace_back();
    each.name = entry.at("name");
    const std::vector<std::string> tasks = entry.at("tasks");
    each.is_fitted = entry.contains("fitted");
    if (each.is_fitted) {
      for (const LengthFamily family : all_length_families) {
        if (entry.at("fitted") == to_string(family)) each.tasks = published_tasks(family, tasks);
      }
      continue;
    }
    const std::vector<int64_t> batches = entry.at("batches");
    for (size_t k = 0; k < tasks.size(); ++k) {
      each.tasks.push_back({tasks[k], parse_histogram(document.at("histograms").at(tasks[k]).dump(), path), batches[k]});
    }
  }
  return distributions;
}

std::vector<int64_t> draw(const std::vector<TaskLengths>& tasks, uint64_t key, int64_t steps) {
  std::vector<int64_t> all;
  for (const TaskLengths& task : tasks) {
    const std::vector<int64_t> lengths = sample_lengths(task.lengths, mix_key(key, key_of(task.name)), task.batch * steps);
    all.insert(all.end(), lengths.begin(), lengths.end());
  }
  return all;
}

}  // namespace cotune
