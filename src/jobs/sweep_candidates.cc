#include "jobs/sweep_candidates.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/random.h"
#include "jobs/identifier.h"
#include "jobs/merge_options.h"
#include "jobs/swept_fields.h"

namespace cotune {

namespace {

constexpr size_t longest_telling_name = 64;

/// The option as it was given for the job itself, the command line first; null where it was not, or taken back.
const GivenOption* given_option(const JobLayers& job, std::string_view path) {
  for (const OptionLayer* layer : {&job.overrides, &job.own}) {
    const GivenOption* given = find_given(*layer, path);
    if (given != nullptr) return given->is_null ? nullptr : given;
  }
  return nullptr;
}

template <typename Value>
Value value_or(const GivenOption* given, Value otherwise) {
  return given != nullptr ? std::get<Value>(given->value) : otherwise;
}

/// Its letters are some of the key's, in their order: `lr` of `learning_rate`.
bool abbreviates(std::string_view alias, std::string_view key) {
  for (const char letter : key) {
    if (!alias.empty() && alias.front() == letter) alias.remove_prefix(1);
  }
  return alias.empty();
}

/// As people know the option: its key, or the shortest name that abbreviates it. Other programs' own words for it (`val_set_size`) are not taken.
std::string short_name(const Option& option) {
  std::string name = option.key;
  for (const std::string& alias : option.aliases) {
    if (alias.size() < name.size() && abbreviates(alias, option.key)) name = alias;
  }
  return name;
}

/// `1e20` of `1e+20`, which is no part of a name.
std::string without_plus(std::string number) {
  std::erase(number, '+');
  return number;
}

double rounded(double value, int significant_digits) {
  if (value == 0) return 0;
  const double scale = std::pow(10, significant_digits - 1 - std::floor(std::log10(std::abs(value))));
  return std::round(value * scale) / scale;
}

/// So that tables and names stay readable, and so that 0.1 + 2 · 0.1 is 0.3.
constexpr int digits_of_draws = 4, digits_of_steps = 12;

/// Whole numbers of a range are below 2^53, so that all of this is exact (swept_fields.h).
double drawn_whole(const SweptField& field, uint64_t key) {
  if (field.is_log) {
    const double low = std::log(field.low);
    return std::floor(std::exp(low + uniform(key, 0) * (std::log(field.high + 1) - low)));
  }
  const auto step = std::max<uint64_t>(1, static_cast<uint64_t>(field.step)), width = static_cast<uint64_t>(field.high - field.low);
  return field.low + static_cast<double>(uniform_below(key, 0, width / step + 1) * step);
}

double drawn_number(const SweptField& field, uint64_t key) {
  if (field.step > 0) {
    const auto last = static_cast<uint64_t>(std::floor((field.high - field.low) / field.step * (1 + 1e-12)));
    return rounded(field.low + static_cast<double>(uniform_below(key, 0, last + 1)) * field.step, digits_of_steps);
  }
  const double share = uniform(key, 0);
  if (!field.is_log) return rounded(field.low + share * (field.high - field.low), digits_of_draws);
  const double low = std::log(field.low);
  return rounded(std::exp(low + share * (std::log(field.high) - low)), digits_of_draws);
}

std::string drawn_value(const SweptField& field, uint64_t seed, int64_t sample) {
  const uint64_t key = mix_key(mix_key(mix64(seed), key_of(field.option)), static_cast<uint64_t>(sample));
  if (!field.values.empty()) return field.values[uniform_below(key, 0, field.values.size())];
  const Option& option = *options_set_by({.option = field.option}, "null").front().option;
  if (option.accepted.type == OptionType::number) return fmt::format("{}", std::clamp(drawn_number(field, key), field.low, field.high));
  return fmt::format("{}", static_cast<int64_t>(std::clamp(drawn_whole(field, key), field.low, field.high)));
}

class SweepExpansion {
 public:
  SweepExpansion(const JobLayers& job, MistakeList& mistakes) : job_(job), mistakes_(mistakes) {}

  /// Nothing where the sweep is mistaken.
  std::vector<JobLayers> candidates(size_t most) {
    const GivenOption* name = given_option(job_, "name");
    if (name == nullptr || name->is_mistaken || !read() || !check_own_options()) return {};
    int64_t count = samples_;
    for (const SweptField& field : grid_) count = std::min<int64_t>(count * std::ssize(field.values), 2 * most_jobs);
    if (count > static_cast<int64_t>(most)) {
      mistakes_.add(*place_, fmt::format("gives more candidates than a file may have jobs, {}", most_jobs));
      return {};
    }
    std::vector<JobLayers> all;
    for (int64_t sample = 1; sample <= samples_; ++sample) {
      for (int64_t combination = 0; combination < count / samples_; ++combination) all.push_back(candidate(*name, sample, combination));
    }
    return all;
  }

 private:
  struct Tried {
    const SweptField* field = nullptr;
    const GivenOption* given = nullptr;  ///< `grid` or `random`
    std::string value;
    int64_t position = 0;                ///< of a grid's value, counted from 1
  };

  bool read() {
    const GivenOption* grid = given_option(job_, "sweep.grid");
    const GivenOption* random = given_option(job_, "sweep.random");
    const GivenOption* samples = given_option(job_, "sweep.samples");
    const GivenOption* seed = given_option(job_, "sweep.seed");
    bool all_well = true;
    const auto complain = [&](const GivenOption& at, const std::string& message) {
      mistakes_.add(at, message);
      all_well = false;
    };
    for (const GivenOption* given : {grid, random, samples, seed}) all_well = all_well && (given == nullptr || !given->is_mistaken);
    const bool draws_are_known = samples == nullptr || !samples->is_mistaken;
    place_ = grid != nullptr ? grid : random;
    grid_given_ = grid;
    random_given_ = random;
    grid_ = value_or(grid, std::vector<SweptField>{});
    random_ = value_or(random, std::vector<SweptField>{});
    seed_ = value_or(seed, uint64_t{0});
    const int64_t draws = value_or(samples, int64_t{0});
    if (random != nullptr && draws == 0 && draws_are_known) complain(*random, "needs `samples` beside it: how often to draw");
    if (random == nullptr && draws > 0) complain(*samples, "counts draws of `random`, and the sweep has none");
    if (random == nullptr && seed != nullptr) complain(*seed, "seeds draws of `random`, and the sweep has none");
    samples_ = std::max<int64_t>(1, draws);
    return all_well;
  }

  /// Each option is set by one field of the sweep, and not by the job itself.
  bool check_own_options() {
    std::set<const Option*> set;
    bool all_well = true;
    for (const auto* fields : {&grid_, &random_}) {
      const GivenOption& given = fields == &grid_ ? *grid_given_or_place() : *random_given_or_place();
      for (const SweptField& field : *fields) {
        std::set<const Option*> of_field;
        for (const std::string& value : field.values.empty() ? std::vector<std::string>{"null"} : field.values) {
          for (const SweptOption& swept : options_set_by(field, value)) of_field.insert(swept.option);
        }
        for (const Option* option : of_field) {
          const auto complain = [&](const GivenOption& at, const std::string& message) {
            mistakes_.add(at, message);
            all_well = false;
          };
          if (!set.insert(option).second) {
            complain(at_field(given, field), fmt::format("`{}` is tried by another field of the sweep, too", option->path()));
          }
          if (const GivenOption* own = given_option(job_, option->path())) {
            complain(*own, fmt::format("is what the sweep tries ({}): take one of them away", at_field(given, field).field));
          }
        }
      }
    }
    return all_well;
  }

  const GivenOption* grid_given_or_place() const { return grid_given_ != nullptr ? grid_given_ : place_; }
  const GivenOption* random_given_or_place() const { return random_given_ != nullptr ? random_given_ : place_; }

  /// Where the field was given.
  static GivenOption at_field(const GivenOption& given, const SweptField& field) {
    GivenOption at = given;
    if (given.line > 0 && field.line == 0) at.file = override_file;
    if (given.line > 0) at.line = field.line;
    at.field = fmt::format("{}.{}", given.field, field.option);
    return at;
  }

  JobLayers candidate(const GivenOption& name, int64_t sample, int64_t combination) const {
    std::vector<Tried> tried;
    for (auto field = grid_.rbegin(); field != grid_.rend(); ++field) {
      const int64_t position = combination % std::ssize(field->values);
      combination /= std::ssize(field->values);
      tried.insert(tried.begin(), {&*field, grid_given_, field->values[static_cast<size_t>(position)], position + 1});
    }
    const std::string own = std::get<std::string>(name.value) + name_ending(tried, sample);
    for (const SweptField& field : random_) tried.push_back({&field, random_given_, drawn_value(field, seed_, sample - 1), 0});

    JobLayers candidate = job_;
    for (OptionLayer* layer : {&candidate.own, &candidate.overrides}) {
      std::erase_if(*layer, [](const auto& entry) {
        const std::string path = entry.first->path();
        return path == "sweep.grid" || path == "sweep.random" || path == "sweep.samples" || path == "sweep.seed";
      });
    }
    const auto give = [&](std::string_view path, OptionValue value, const GivenOption& at) {
      const Option* option = nullptr;
      for (const Option& each : option_table()) {
        if (each.path() == path) option = &each;
      }
      GivenOption given{std::move(value), OptionLevel::job, at.file, at.line, at.field};
      candidate.own.insert_or_assign(option, std::move(given));
      candidate.overrides.erase(option);
    };
    std::vector<std::pair<std::string, std::string>> values;
    for (const Tried& each : tried) {
      const GivenOption at = at_field(*each.given, *each.field);
      for (const SweptOption& swept : options_set_by(*each.field, each.value)) {
        values.emplace_back(swept.option->path(), swept.text);
        give(swept.option->path(), swept.value, at);
        candidate.own.at(swept.option).is_null = swept.is_null;
      }
    }
    if (!is_identifier(own)) mistakes_.add(name, fmt::format("is too long for the names of the sweep's candidates, such as {}", own));
    give("name", own, name);
    give("sweep.of", std::get<std::string>(name.value), *place_);
    give("sweep.values", std::move(values), *place_);
    return candidate;
  }

  /// `-r8-lr0.0003` of a grid's values, `-007` of a draw, both of both; `-2.1` where the values make no short name.
  std::string name_ending(const std::vector<Tried>& of_grid, int64_t sample) const {
    std::string telling, positions;
    for (const Tried& each : of_grid) {
      const std::vector<SweptOption> options = options_set_by(*each.field, each.value);
      const Option& option = *options.front().option;
      const OptionType type = option.accepted.type;
      const bool is_number = type == OptionType::whole || type == OptionType::number || type == OptionType::seed;
      const bool is_word = type == OptionType::choice || type == OptionType::boolean;
      const bool is_section = each.field->option.find('.') == std::string::npos && options.front().option->section != Section::job;
      const std::string label = is_section ? each.field->option : short_name(option);
      telling += "-" + label;
      const std::string value = is_number ? without_plus(each.value) : each.value;
      if (is_section || !(is_number || is_word) || !is_identifier(value)) {
        telling += fmt::format("{}", each.position);
      } else {
        telling += (is_word ? "-" : "") + value;
      }
      positions += fmt::format("{}{}", positions.empty() ? "-" : ".", each.position);
    }
    std::string ending = telling.size() <= longest_telling_name ? telling : positions;
    if (random_given_ != nullptr) ending += fmt::format("-{:03}", sample);
    return ending;
  }

  const JobLayers& job_;
  MistakeList& mistakes_;
  const GivenOption *place_ = nullptr, *grid_given_ = nullptr, *random_given_ = nullptr;
  std::vector<SweptField> grid_, random_;
  int64_t samples_ = 1;
  uint64_t seed_ = 0;
};

/// Where the job says how to sweep and not what: the first such option.
const GivenOption* sweep_without_fields(const JobLayers& job) {
  if (given_option(job, "sweep.of") != nullptr) return nullptr;
  for (const OptionLayer* layer : {&job.own, &job.overrides}) {
    for (const auto& [option, given] : *layer) {
      const bool of_sweep = option->section == Section::sweep || option->section == Section::halving;
      if (of_sweep && !given.is_mistaken && given_option(job, option->path()) == &given) return &given;
    }
  }
  return nullptr;
}

/// Leaves the job without a sweep, so that the rest of it can be checked.
void take_sweep_away(JobLayers& job) {
  for (OptionLayer* layer : {&job.own, &job.overrides}) {
    std::erase_if(*layer, [](const auto& entry) { return entry.first->section == Section::sweep || entry.first->section == Section::halving; });
  }
}

}  // namespace

void expand_sweeps(JobsFileLayers& layers, MistakeList& mistakes) {
  std::vector<JobLayers> expanded;
  for (JobLayers& job : layers.jobs) {
    const bool sweeps = given_option(job, "sweep.grid") != nullptr || given_option(job, "sweep.random") != nullptr;
    const bool is_candidate = given_option(job, "sweep.of") != nullptr;
    std::vector<JobLayers> candidates;
    if (sweeps && is_candidate) {
      mistakes.add(*given_option(job, "sweep.of"), "belongs to a candidate, and this job has a sweep of its own");
    } else if (sweeps) {
      candidates = SweepExpansion(job, mistakes).candidates(most_jobs - std::min(most_jobs, expanded.size()));
    } else if (const GivenOption* rule = sweep_without_fields(job)) {
      mistakes.add(*rule, "says how to sweep, and the sweep needs `grid` or `random` beside it: what to try");
    }
    if (candidates.empty()) {
      if (!is_candidate || sweeps) take_sweep_away(job);
      candidates.push_back(std::move(job));
    }
    std::move(candidates.begin(), candidates.end(), std::back_inserter(expanded));
  }
  layers.jobs = std::move(expanded);
}

}  // namespace cotune
