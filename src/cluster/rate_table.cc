#include "cluster/rate_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/json_mistake.h"
#include "base/random.h"

namespace cotune {
namespace {

constexpr std::array<double, 9> knots = {2, 4, 6, 9, 13, 19, 28, 42, 64};

/// x of (A + ridge·diag)·x = b, A symmetric and positive semidefinite: Cholesky.
std::vector<double> solve(std::vector<std::vector<double>> a, std::vector<double> b) {
  const size_t n = b.size();
  for (size_t i = 0; i < n; ++i) a[i][i] += 1e-9 * a[i][i] + 1e-12;
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j <= i; ++j) {
      double sum = a[i][j];
      for (size_t k = 0; k < j; ++k) sum -= a[i][k] * a[j][k];
      a[i][j] = i == j ? std::sqrt(std::max(sum, 1e-30)) : sum / a[j][j];
    }
  }
  for (size_t i = 0; i < n; ++i) {
    for (size_t k = 0; k < i; ++k) b[i] -= a[i][k] * b[k];
    b[i] /= a[i][i];
  }
  for (size_t i = n; i-- > 0;) {
    for (size_t k = i + 1; k < n; ++k) b[i] -= a[k][i] * b[k];
    b[i] /= a[i][i];
  }
  return b;
}

/// Shares of the knots around a number of jobs.
std::array<double, knots.size()> knot_shares(int64_t jobs) {
  std::array<double, knots.size()> shares{};
  const double x = std::clamp(static_cast<double>(jobs), knots.front(), knots.back());
  size_t after = 1;
  while (after + 1 < knots.size() && knots[after] < x) ++after;
  const double share = (x - knots[after - 1]) / (knots[after] - knots[after - 1]);
  shares[after - 1] = 1 - share;
  shares[after] = share;
  return shares;
}

/// A mix of at least three jobs that fits, or a smaller one where no three do. Of kinds of `among`.
JobMix draw_mix(const InstanceMemory& memory, const std::vector<int32_t>& among, const RateTableSettings& settings, uint64_t index) {
  const uint64_t key = mix_key(mix_key(settings.seed, key_of("rate table")), index);
  std::vector<int32_t> drawn;
  MemoryInUse in_use(memory);
  // Mixes of few kinds are as likely as mixes of many.
  std::vector<int32_t> choice;
  const uint64_t kinds = 1 + uniform_below(key, 0, among.size());
  for (uint64_t i = 0; i < kinds; ++i) choice.push_back(among[uniform_below(key, 1000 + i, among.size())]);
  const int64_t most = settings.most_jobs > 0 ? settings.most_jobs : static_cast<int64_t>(knots.back());
  JobMix mix;
  while (static_cast<int64_t>(drawn.size()) < most) {
    const int32_t kind = choice[uniform_below(key, 2000 + drawn.size(), choice.size())];
    if (!in_use.fits(kind)) break;
    drawn.push_back(kind);
    mix.add(kind);
    in_use.set(mix);
  }
  // Half of them full: where more jobs wait than there is room for, most mixes are.
  if (drawn.size() > 3 && uniform_below(key, 2, 2) == 0) drawn.resize(3 + uniform_below(key, 1, drawn.size() - 2));
  return JobMix(drawn);
}

void check_field(bool good, const std::string& file_name, const std::string& field, const std::string& accepted) {
  if (!good) throw_user_error("{}: {}: must be {}", file_name, field, accepted);
}

std::vector<double> positive_numbers(const nlohmann::json& json, size_t count, const std::string& file_name, const std::string& field,
                                     bool any_sign = false) {
  check_field(json.is_array() && json.size() == count, file_name, field, fmt::format("a list of {} numbers", count));
  std::vector<double> values;
  for (const auto& each : json) {
    check_field(each.is_number() && (any_sign || each.get<double>() > 0), file_name, field, "numbers above 0");
    values.push_back(each.get<double>());
  }
  return values;
}

}  // namespace

RateTable RateTable::make(RoundRates& source, const InstanceMemory& memory, const std::vector<JobKind>& kinds,
                          const RateTableSettings& settings) {
  RateTable table;
  table.kinds_ = kinds;
  table.padded_ = memory.padded;
  table.most_jobs_ = settings.most_jobs;
  const auto count = static_cast<int32_t>(kinds.size());
  for (int32_t kind = 0; kind < count; ++kind) {
    // A kind that fits nowhere is never asked for.
    const JobMix alone({kind});
    table.alone_s_.push_back(memory.fits(alone) ? source.round_seconds(alone) : 1.0);
  }
  if (settings.most_jobs == 1) return table;
  for (int32_t i = 0; i < count; ++i) {
    std::vector<double>& row = table.pairs_s_.emplace_back();
    for (int32_t j = 0; j <= i; ++j) {
      const JobMix pair({i, j});
      const double sum = table.alone_s_[static_cast<size_t>(i)] + table.alone_s_[static_cast<size_t>(j)];
      row.push_back(memory.fits(pair) ? source.round_seconds(pair) : sum);
    }
  }
  // One set of kinds a fit, so that each has as many samples: all of them, or those up to a longest row.
  std::vector<std::vector<int32_t>> among;
  for (const int64_t longest : table.fit_keys()) {
    std::vector<int32_t>& own = among.emplace_back();
    for (int32_t kind = 0; kind < count; ++kind) {
      if (!table.padded_ || kinds[static_cast<size_t>(kind)].tokens <= longest) own.push_back(kind);
    }
  }
  std::vector<std::pair<JobMix, double>> samples, unseen;
  for (int64_t i = 0; i < settings.samples * static_cast<int64_t>(among.size()); ++i) {
    const JobMix mix = draw_mix(memory, among[static_cast<size_t>(i) % among.size()], settings, static_cast<uint64_t>(i));
    if (mix.job_count() >= 3) (i / static_cast<int64_t>(among.size()) % 6 == 5 ? unseen : samples).emplace_back(mix, source.round_seconds(mix));
  }
  table.fit(samples);
  for (const auto& [mix, seconds] : unseen) {
    const double error = std::abs(table.predicted_round_seconds(mix) / seconds - 1);
    table.mean_error_ += error / static_cast<double>(unseen.size());
    table.worst_error_ = std::max(table.worst_error_, error);
  }
  return table;
}

int64_t RateTable::fit_of(const JobMix& mix) const {
  int64_t longest = 0;
  if (!padded_) return 0;
  for (const auto& [kind, count] : mix.counts()) longest = std::max(longest, kinds_[static_cast<size_t>(kind)].tokens);
  return longest;
}

std::vector<double> RateTable::features(const JobMix& mix) const {
  std::vector<double> row(kinds_.size() + knots.size(), 0);
  for (const auto& [kind, count] : mix.counts()) row[static_cast<size_t>(kind)] = count;
  const auto shares = knot_shares(mix.job_count());
  std::copy(shares.begin(), shares.end(), row.begin() + static_cast<std::ptrdiff_t>(kinds_.size()));
  return row;
}

std::set<int64_t> RateTable::fit_keys() const {
  std::set<int64_t> keys;
  for (const JobKind& kind : kinds_) keys.insert(padded_ ? kind.tokens : 0);
  return keys;
}

void RateTable::fit(const std::vector<std::pair<JobMix, double>>& samples) {
  const size_t n = kinds_.size() + knots.size();
  for (const int64_t key : fit_keys()) {
    std::vector<std::vector<double>> normal(n, std::vector<double>(n, 0));
    std::vector<double> right(n, 0);
    const auto add = [&](const JobMix& mix, double seconds, double weight) {
      const std::vector<double> row = features(mix);
      for (size_t i = 0; i < n; ++i) {
        if (row[i] == 0) continue;
        right[i] += weight * row[i] / seconds;
        for (size_t j = 0; j < n; ++j) normal[i][j] += weight * row[i] * row[j] / (seconds * seconds);
      }
    };
    for (const auto& [mix, seconds] : samples) {
      if (fit_of(mix) == key) add(mix, seconds, 1);
    }
    // A little of the pairs everywhere, so that a kind without samples has a share as well.
    for (size_t i = 0; i < pairs_s_.size(); ++i) {
      for (size_t j = 0; j <= i; ++j) {
        const JobMix pair({static_cast<int32_t>(i), static_cast<int32_t>(j)});
        if (fit_of(pair) == key) add(pair, pairs_s_[i][j], 1e-3);
      }
    }
    const std::vector<double> solution = solve(normal, right);
    const auto border = solution.begin() + static_cast<std::ptrdiff_t>(kinds_.size());
    fits_[key] = {{solution.begin(), border}, {border, solution.end()}};
  }
}

double RateTable::predicted_round_seconds(const JobMix& mix) const {
  const auto& counts = mix.counts();
  const auto alone = [&](size_t i) { return alone_s_[static_cast<size_t>(counts[i].first)]; };
  if (mix.job_count() == 1) return alone(0);
  COTUNE_CHECK(!pairs_s_.empty(), "{} jobs for a table of dedicated instances", mix.job_count());
  if (mix.job_count() == 2) {
    return pairs_s_[static_cast<size_t>(counts.back().first)][static_cast<size_t>(counts.front().first)];
  }
  const Fit& fit = fits_.at(fit_of(mix));
  double seconds = 0, least = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    seconds += counts[i].second * fit.kind_s[static_cast<size_t>(counts[i].first)];
    least = std::max(least, alone(i));
  }
  const auto shares = knot_shares(mix.job_count());
  for (size_t i = 0; i < shares.size(); ++i) seconds += shares[i] * fit.offset_s[i];
  return std::max(seconds, least);
}

std::string RateTable::describe() const {
  return fmt::format("a rate table of {} kinds; mixes that it was not made from: {:.1f}% off on average, {:.1f}% at worst",
                     kinds_.size(), 100 * mean_error_, 100 * worst_error_);
}

nlohmann::json RateTable::to_json(const std::string& instance) const {
  nlohmann::json json{{"cotune_rates", 1}, {"instance", instance}, {"most_jobs", most_jobs_}, {"padded", padded_}, {"alone_s", alone_s_},
                      {"pairs_s", pairs_s_}, {"mean_error", mean_error_}, {"worst_error", worst_error_}};
  json["kinds"] = nlohmann::json::array();
  for (const JobKind& kind : kinds_) json["kinds"].push_back(kind.name());
  json["fits"] = nlohmann::json::array();
  for (const auto& [longest, fit] : fits_) {
    json["fits"].push_back({{"longest_row", longest}, {"kind_s", fit.kind_s}, {"offset_s", fit.offset_s}});
  }
  return json;
}

RateTable RateTable::from_json(const nlohmann::json& json, const std::string& file_name, const std::string& instance,
                               const std::vector<JobKind>& kinds, int64_t most_jobs) {
  check_field(json.is_object() && json.contains("cotune_rates") && json.at("cotune_rates") == 1, file_name, "cotune_rates",
              "1: a rate table of cotune simulate");
  const auto at = [&](const nlohmann::json& object, const char* field) -> const nlohmann::json& {
    check_field(object.is_object() && object.contains(field), file_name, field, "there");
    return object.at(field);
  };
  const nlohmann::json& made_for = at(json, "instance");
  check_field(made_for.is_string() && made_for.get<std::string>() == instance, file_name, "instance",
              fmt::format("`{}`, got {}", instance, made_for.dump()));
  const nlohmann::json& most = at(json, "most_jobs");
  const int64_t made_from = most.is_number_integer() ? most.get<int64_t>() : -1;
  check_field(made_from == 0 || (most_jobs > 0 && made_from >= most_jobs), file_name, "most_jobs",
              fmt::format("{}, got {}", most_jobs > 0 ? fmt::format("0 or {} and more", most_jobs) : "0: mixes of as many jobs as fit", most.dump()));
  const nlohmann::json& names = at(json, "kinds");
  check_field(names.is_array(), file_name, "kinds", "a list of names");
  const size_t stored = names.size();
  std::vector<size_t> place;  // of our kinds in the file
  for (const JobKind& kind : kinds) {
    const auto found = std::find(names.begin(), names.end(), nlohmann::json(kind.name()));
    check_field(found != names.end(), file_name, "kinds", fmt::format("a list with `{}`, a kind of the trace", kind.name()));
    place.push_back(static_cast<size_t>(found - names.begin()));
  }
  RateTable table;
  table.kinds_ = kinds;
  table.most_jobs_ = made_from;
  table.padded_ = at(json, "padded").is_boolean() && json.at("padded").get<bool>();
  const std::vector<double> alone = positive_numbers(at(json, "alone_s"), stored, file_name, "alone_s");
  for (const size_t each : place) table.alone_s_.push_back(alone[each]);
  const nlohmann::json& pairs = at(json, "pairs_s");
  check_field(pairs.is_array() && (pairs.empty() || pairs.size() == stored), file_name, "pairs_s", "a list of a row per kind");
  if (!pairs.empty()) {
    std::vector<std::vector<double>> rows;
    for (size_t i = 0; i < stored; ++i) rows.push_back(positive_numbers(pairs[i], i + 1, file_name, fmt::format("pairs_s[{}]", i)));
    for (size_t i = 0; i < kinds.size(); ++i) {
      std::vector<double>& row = table.pairs_s_.emplace_back();
      for (size_t j = 0; j <= i; ++j) row.push_back(rows[std::max(place[i], place[j])][std::min(place[i], place[j])]);
    }
  }
  for (const nlohmann::json& each : at(json, "fits")) {
    const nlohmann::json& longest = at(each, "longest_row");
    check_field(longest.is_number_integer(), file_name, "fits[].longest_row", "a whole number");
    const std::vector<double> kind_s = positive_numbers(at(each, "kind_s"), stored, file_name, "fits[].kind_s", true);
    Fit fit{.offset_s = positive_numbers(at(each, "offset_s"), knots.size(), file_name, "fits[].offset_s", true)};
    for (const size_t one : place) fit.kind_s.push_back(kind_s[one]);
    table.fits_[longest.get<int64_t>()] = fit;
  }
  for (const JobKind& kind : kinds) {
    if (table.pairs_s_.empty()) break;
    const int64_t key = table.padded_ ? kind.tokens : 0;
    check_field(table.fits_.count(key) > 0, file_name, "fits", fmt::format("a list with the longest row {}", key));
  }
  for (const auto& [field, error] : {std::pair{"mean_error", &table.mean_error_}, std::pair{"worst_error", &table.worst_error_}}) {
    const nlohmann::json& value = at(json, field);
    check_field(value.is_number() && value.get<double>() >= 0, file_name, field, fmt::format("a number of at least 0, got {}", value.dump()));
    *error = value.get<double>();
  }
  return table;
}

RateTable RateTable::read(const std::filesystem::path& path, const std::string& instance, const std::vector<JobKind>& kinds, int64_t most_jobs) {
  const nlohmann::json json = json_of_file(read_file(path), path.string());
  return from_json(json, path.string(), instance, kinds, most_jobs);
}

}  // namespace cotune
