#include "plan/shapes/length_histogram.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "base/diagnostics.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json_mistake.h"
#include "base/random.h"
#include "plan/shapes/published_lengths.h"

namespace cotune {
namespace {

constexpr int64_t longest_accepted = 1 << 20;

LengthHistogram from_map(const std::map<int64_t, double>& weights) {
  return {{weights.begin(), weights.end()}};
}

}  // namespace

double LengthHistogram::total() const {
  double sum = 0;
  for (const auto& [length, weight] : weights) sum += weight;
  return sum;
}

double LengthHistogram::mean() const {
  double sum = 0;
  for (const auto& [length, weight] : weights) sum += weight * static_cast<double>(length);
  return sum / total();
}

double LengthHistogram::skewness() const {
  const double center = mean();
  double second = 0, third = 0;
  for (const auto& [length, weight] : weights) {
    const double from_center = static_cast<double>(length) - center;
    second += weight * from_center * from_center;
    third += weight * from_center * from_center * from_center;
  }
  if (second <= 0) return 0;
  return third / total() / std::pow(second / total(), 1.5);
}

int64_t LengthHistogram::longest() const {
  return empty() ? 0 : weights.back().first;
}

LengthHistogram histogram_of(std::span<const int64_t> lengths) {
  std::map<int64_t, double> weights;
  for (const int64_t length : lengths) ++weights[length];
  return from_map(weights);
}

std::vector<int64_t> sample_lengths(const LengthHistogram& histogram, uint64_t key, int64_t count) {
  COTUNE_CHECK(!histogram.empty());
  std::vector<double> ends;
  double sum = 0;
  for (const auto& [length, weight] : histogram.weights) ends.push_back(sum += weight);
  std::vector<int64_t> lengths;
  lengths.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    const double drawn = uniform(key, static_cast<uint64_t>(i)) * sum;
    const auto place = std::upper_bound(ends.begin(), ends.end() - 1, drawn) - ends.begin();
    lengths.push_back(histogram.weights[static_cast<size_t>(place)].first);
  }
  return lengths;
}

LengthHistogram truncated(const LengthHistogram& histogram, int64_t longest) {
  std::map<int64_t, double> weights;
  for (const auto& [length, weight] : histogram.weights) weights[std::min(length, longest)] += weight;
  return from_map(weights);
}

LengthHistogram parse_histogram(std::string_view json, const std::string& file_name) {
  using Json = nlohmann::json;
  Json document;
  std::set<std::string> seen, repeated;  // keys of the object itself
  const auto note = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (event != Json::parse_event_t::key || depth != 1) return true;
    const auto key = parsed.get<std::string>();
    if (!seen.insert(key).second) repeated.insert(key);
    return true;
  };
  try {
    document = Json::parse(json, note);
  } catch (const Json::exception& error) {
    throw_not_json(file_name, json, error);
  }
  if (!document.is_object() || document.empty()) {
    throw_user_error("{}: must be a JSON object from lengths to counts that is not empty, got {}", file_name,
                     document.dump(-1, ' ', false, Json::error_handler_t::replace).substr(0, 60));
  }
  Diagnostics mistakes;
  std::map<int64_t, double> weights;
  for (const auto& [key, value] : document.items()) {
    int64_t length = 0;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), length);
    if (error != std::errc{} || end != key.data() + key.size() || length < 1 || length > longest_accepted) {
      mistakes.add(file_name, 0, key.substr(0, 60), fmt::format("a length must be a whole number from 1 to {}", longest_accepted));
    } else if (!value.is_number() || !(value.get<double>() > 0) || value.get<double>() > 1e15) {
      mistakes.add(file_name, 0, key, fmt::format("must be a count above 0, got {}", value.dump().substr(0, 60)));
    } else if (repeated.contains(key)) {
      mistakes.add(file_name, 0, key, "the length is given twice");
    } else if (!weights.emplace(length, value.get<double>()).second) {  // 20 and 020
      mistakes.add(file_name, 0, key, fmt::format("length {} is given twice", length));
    }
  }
  mistakes.throw_if_any();
  return from_map(weights);
}

LengthHistogram read_histogram_file(const std::filesystem::path& path) {
  return parse_histogram(read_file(path), path.string());
}

LengthHistogram find_histogram(const LengthsSpec& lengths) {
  if (!lengths.counts.empty()) {
    LengthHistogram histogram;
    for (const auto& [length, count] : lengths.counts) histogram.weights.emplace_back(length, static_cast<double>(count));
    return histogram;
  }
  const std::string& name = lengths.histogram;
  if (name.find('/') != std::string::npos || name.ends_with(".json")) return read_histogram_file(name);
  return published_lengths(name);
}

}  // namespace cotune
