/// The one list of everything a jobs file can say. Parsing, checks, the JSON Schema, the tables in docs/jobs-file.md,
/// to_yaml and the command line's run options are all derived from it: a new option is one entry in the file of
/// its section, below options/.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "jobs/job.h"

namespace cotune {

/// Where a key stands: `model` and `run` at the top; `job` directly in an entry of `jobs` (or in `defaults`), `data`, `adapter`,
/// `train` and `sweep` inside that, and `halving` inside `sweep`.
enum class Section { model, run, job, data, adapter, train, sweep, halving };

inline constexpr Section all_sections[] = {Section::model,   Section::run,   Section::job,   Section::data,
                                           Section::adapter, Section::train, Section::sweep, Section::halving};

/// `model`, `run`, `jobs[]`, `data`, `adapter`, `train`, `sweep`, `halving`: the key of the section's map.
std::string_view section_name(Section section);

/// Below an entry of `jobs`: `data`, `adapter`, `train`, `sweep`, `sweep.halving`.
std::string_view section_path(Section section);

/// The sections that stand inside one: of `job` and of `sweep`.
std::span<const Section> sections_in(Section section);

enum class OptionType {
  text,          ///< any text
  identifier,    ///< [A-Za-z0-9._-]+, not starting with '.' or '-', at most 100 characters
  time,          ///< ISO 8601: 2026-01-31, 2026-01-31T18:00, with seconds and Z or +02:00
  path,          ///< file or folder
  files,         ///< std::vector<TrainFile>: a path, or a list of paths and of maps with path and weight
  name_or_path,  ///< a name, or a path when it holds a '/' or ends in .json
  memory,        ///< memory_size.h
  parallel,      ///< auto, or parallel.h
  choice,
  boolean,
  whole,     ///< int64_t
  seed,      ///< uint64_t
  number,    ///< double
  modules,   ///< a list of module names, or one text: `all-linear`, a name or a regular expression
  wholes,    ///< list of int64_t
  lengths,   ///< LengthsSpec: a list of lengths, a map length → count, or a name or file
  whole_by_module,   ///< map: regular expression → int64_t
  number_by_module,  ///< map: regular expression → double
  grid,              ///< map: option of a job → list of its values
  distributions,     ///< the same, or a range in place of the list
  swept_values,      ///< map: option of a job → its value
};

/// What an option accepts. Bounds hold for numbers and for the members of lists and maps.
struct Accepted {
  OptionType type = OptionType::text;
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool low_open = false;   ///< the bound itself is excluded
  bool high_open = false;
  std::vector<std::string> choices;
  std::vector<std::pair<std::string, std::string>> choice_aliases;  ///< other spelling → choice
  bool may_be_auto = false;      ///< a whole number; `auto` is one, too, and then the value is that text
  bool may_be_emulated = false;  ///< `emulated:FILE` is a choice, too (emulated_file.h)
  bool may_be_hub_name = false;  ///< a path that does not exist may be the name of a repository in the Hugging Face cache (hub_cache.h)
};

/// A value as the table's readers and writers pass it on; a choice is its name.
using OptionValue = std::variant<bool, int64_t, uint64_t, double, std::string, std::vector<std::string>,
                                 std::vector<int64_t>, std::vector<TrainFile>, LengthsSpec, ModulePattern<int64_t>, ModulePattern<double>,
                                 std::vector<SweptField>, std::vector<std::pair<std::string, std::string>>>;

/// The objects that options write to. `job` is null while model and run are read.
struct OptionTarget {
  ModelSpec* model = nullptr;
  RunSpec* run = nullptr;
  JobSpec* job = nullptr;
};

/// When an option has a meaning.
struct Condition {
  std::function<bool(const OptionTarget&)> holds;
  std::string summary;  ///< for the docs: "method lora"
  std::function<std::string(const std::string& key, const OptionTarget&)> complaint;
  std::vector<std::string> reads = {};  ///< paths of the options that it looks at: where one of them is a mistake, nobody knows whether it holds
  bool unset_is_fine = false;           ///< 0, false and nothing are accepted although the condition does not hold
};

struct Option {
  Section section = Section::job;
  std::string key;
  std::vector<std::string> aliases;
  std::vector<std::string> root_aliases;  ///< names at the top of the file
  Accepted accepted;
  std::string description;
  std::string default_note;  ///< shown in place of the default's value
  bool required = false;     ///< for the schema and the docs; jobs_file.cc says when
  bool in_defaults = true;
  bool is_recorded = false;  ///< cotune writes it into the configurations of runs; people are not offered it
  /// Options of one group with different alternatives exclude each other (`steps`, `epochs`); "" : no group.
  std::string group;
  std::string alternative;
  std::optional<Condition> condition;
  bool input_only = false;  ///< another way to give a value that to_yaml writes under its own option
  std::function<OptionValue(const OptionTarget&)> get;  ///< of an input_only option: the value that changes nothing
  std::function<void(const OptionTarget&, const OptionValue&)> set;

  /// `train.steps`, `model.path`, `name`.
  std::string path() const;
};

/// All options, in the order in which they are applied, shown and written.
const std::vector<Option>& option_table();

/// The option of that section with the key or alias `name`; null when there is none.
const Option* find_option(Section section, std::string_view name);

/// The option's value in default-constructed specs.
OptionValue default_value(const Option& option);

/// 0, false, "", an empty list or map.
bool is_unset(const OptionValue& value);

}  // namespace cotune
