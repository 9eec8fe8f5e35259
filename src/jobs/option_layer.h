/// Options as given in one place (defaults, a job, the command line), before they are merged.
#pragma once

#include <yaml-cpp/yaml.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/diagnostics.h"
#include "jobs/option_table.h"

namespace cotune {

/// Later levels win over earlier ones.
enum class OptionLevel { defaults, defaults_override, job, job_override };

/// One option as the user gave it.
struct GivenOption {
  OptionValue value;
  OptionLevel level = OptionLevel::job;
  std::string file;   ///< `--set` for the command line
  int line = 0;
  std::string field;  ///< as written: `jobs[2].adapter.lora_r`
  bool is_mistaken = false;  ///< the value was refused and reported; `value` is the default
  bool is_null = false;      ///< `null`, `~` or nothing: takes back what weaker levels say; `value` is the default
};

struct ByTableOrder {
  bool operator()(const Option* a, const Option* b) const { return a < b; }
};

/// What was given, in the order of the option table.
using OptionLayer = std::map<const Option*, GivenOption, ByTableOrder>;

/// Collects mistakes, each once, up to a number that a reader can still use.
class MistakeList {
 public:
  static constexpr size_t most = 100;

  void add(const std::string& file, int line, const std::string& field, const std::string& message);
  void add(const GivenOption& at, const std::string& message) { add(at.file, at.line, at.field, message); }
  /// One that leaves all other options as they are given: an unknown key, an option given twice, or where it has no effect.
  void add_superfluous(const std::string& file, int line, const std::string& field, const std::string& message);
  bool is_superfluous(size_t item) const { return superfluous_.contains(item); }
  bool empty() const { return seen_.empty(); }
  bool is_full() const { return full_; }
  const std::vector<Diagnostic>& items() const { return mistakes_.items(); }
  void throw_if_any() const { mistakes_.throw_if_any(); }

 private:
  Diagnostics mistakes_;
  std::set<size_t> superfluous_;  ///< of items()
  std::set<std::string> seen_;
  bool full_ = false;
};

/// Reads the maps of one YAML file into layers.
class SectionReader {
 public:
  SectionReader(std::string file, MistakeList& mistakes) : file_(std::move(file)), mistakes_(mistakes) {}

  /// One entry of a map: its key and value, and where it stands.
  struct Entry {
    std::string key;
    YAML::Node value;
    int line = 0;
    std::string field;
  };

  /// The entries of a map; reports other nodes, keys that are no text, keys given twice and `<<`. Nothing counts as
  /// an empty map. field: what messages call the map; "" for the whole file.
  std::vector<Entry> entries(const YAML::Node& node, const std::string& field, int line);

  /// Reads a section's options into `layer`, and those of the sections inside it (sections_in).
  void read_section(Section section, const Entry& entry, OptionLevel level, OptionLayer& layer);

  /// Reads one value into `layer`; reports a wrong value and an option that is already there.
  void read_option(const Option& option, const Entry& entry, OptionLevel level, OptionLayer& layer);

  const std::string& file() const { return file_; }

 private:
  void report_unknown(Section section, const Entry& entry, OptionLevel level, OptionLayer& layer);
  /// Counts visited nodes, so that aliases of aliases cannot make a small file endless; throws UserError.
  void visit(size_t count, int line);

  std::string file_;
  MistakeList& mistakes_;
  size_t visited_ = 0;
};

/// The message for a key that section does not have; says where it belongs, or the nearest name.
std::string unknown_key_message(const std::string& key, Section section, bool in_defaults);
/// Whether it says which option the key was probably meant for.
bool stands_for_another(const std::string& key, Section section, bool in_defaults);

/// The same for a key at the top of a jobs file.
std::string unknown_key_message(const std::string& key);

/// The same for a place with a fixed set of keys.
std::string unknown_key_message(const std::string& key, const std::vector<std::string>& accepted);

}  // namespace cotune
