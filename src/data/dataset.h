/// A job's examples as tokens, and what reading them gave (dataset_reader.h).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/diagnostics.h"
#include "base/error.h"
#include "base/file.h"
#include "base/running_checksum.h"
#include "data/batch_order.h"
#include "data/example.h"
#include "jobs/job.h"

namespace cotune {

/// Where an example stands among the words of its set: its tokens, one a word, then a byte per token (1: learned), the last word
/// filled up with zeros.
struct ExampleEntry {
  uint64_t begin = 0;   ///< in words
  uint32_t length = 0;  ///< in tokens
  int32_t line = 0;
  uint64_t word_count() const { return length + (uint64_t{length} + 3) / 4; }
};
static_assert(sizeof(ExampleEntry) == 16);

/// What the training data of a set are, beside the examples themselves.
struct DatasetTotals {
  int64_t tokens = 0, learned = 0;
  int32_t largest_token = -1;
  std::string content_hash;
};

/// Examples that lie in a mapped file (dataset_file.h).
struct MappedExamples {
  std::shared_ptr<const MappedFile> file;  ///< lives as long as one of them; null: the bytes belong to someone else
  std::span<const int32_t> words;
  std::span<const ExampleEntry> entries;
  DatasetTotals totals;
};

/// Examples, in memory or in a mapped file: 5 bytes per token and 16 per example. Those of one source stand together. Copies share
/// them until one of the copies gets further ones.
class Dataset {
 public:
  struct Source {
    std::string name;   ///< of the file, for messages
    int64_t begin = 0;  ///< its first example
    std::string content_hash;  ///< of examples in a mapped file; "": it does not say
  };

  Dataset() = default;
  explicit Dataset(std::string source) { begin_source(std::move(source)); }
  Dataset(MappedExamples mapped, std::vector<Source> sources) : sources_(std::move(sources)), mapped_(std::move(mapped)) {}

  /// The file of the examples that are added from now on. Only in memory, like add().
  void begin_source(std::string name);
  void add(const Example& example);
  int64_t size() const { return static_cast<int64_t>(entries().size()); }
  bool empty() const { return entries().empty(); }
  std::span<const int32_t> tokens(int64_t index) const;
  std::span<const uint8_t> learned(int64_t index) const;
  int line(int64_t index) const { return entry(index).line; }
  int64_t length(int64_t index) const { return entry(index).length; }
  const std::string& source(int64_t index) const;
  size_t source_count() const { return sources_.size(); }
  const std::string& source_name(size_t source) const;
  int64_t source_size(size_t source) const;  ///< its examples
  Example example(int64_t index) const;

  int64_t token_count() const { return mapped_ ? mapped_->totals.tokens : held().token_count; }
  int64_t learned_count() const { return mapped_ ? mapped_->totals.learned : held().learned_count; }
  int32_t largest_token() const { return mapped_ ? mapped_->totals.largest_token : held().largest_token; }  ///< -1: none
  /// Checksum over every example's length, tokens and labels, in order, and over where files begin if there are several: equal
  /// for equal training data wherever it was read from, and wherever it lies. 32 hexadecimal digits.
  std::string content_hash() const;
  /// The same of the examples of one file; "" where a file of tokenized data of an earlier version does not say.
  std::string source_hash(size_t source) const;

  /// Lets go of the pages of a mapped file that were read (MappedFile::drop_pages): no memory of the process is what a set has on disk.
  void drop_pages() const;

 private:
  struct Held {
    std::vector<int32_t> words;
    std::vector<ExampleEntry> entries;
    int64_t token_count = 0, learned_count = 0;
    int32_t largest_token = -1;
  };
  const Held& held() const;
  std::span<const ExampleEntry> entries() const { return mapped_ ? mapped_->entries : std::span<const ExampleEntry>(held().entries); }
  std::span<const int32_t> words() const { return mapped_ ? mapped_->words : std::span<const int32_t>(held().words); }
  const ExampleEntry& entry(int64_t index) const;

  std::vector<Source> sources_;
  std::optional<MappedExamples> mapped_;  ///< else the examples are these
  std::shared_ptr<Held> held_;            ///< of this one and its copies; null: none
};

/// Dataset::content_hash of examples that come one after the other.
class DatasetChecksum {
 public:
  void begin_source();
  void add(std::span<const int32_t> tokens, std::span<const uint8_t> learned);
  std::string text() const;

 private:
  RunningChecksum ends_, tokens_, learned_;
  uint64_t token_count_ = 0, example_count_ = 0;
  std::string borders_;
  bool has_source_ = false;
};

/// The example's words, as ExampleEntry describes them, behind those that are there.
void append_words(const Example& example, std::vector<int32_t>& words);

/// What became of the lines of one file.
struct FileReport {
  std::string file;
  DataFormat format = DataFormat::automatic;
  int format_line = 0;            ///< of the record that said so; 0: the format was given
  int64_t records = 0;            ///< lines that hold something
  int64_t malformed = 0;
  int64_t too_long = 0;           ///< truncation: error
  int64_t repaired = 0;  ///< lines with bytes that were not UTF-8, or escapes of half a surrogate pair
  int64_t padded = 0;             ///< examples whose padding was left out (records/token_padding.h)
  int64_t truncated = 0;
  int64_t dropped_long = 0;       ///< truncation: drop
  int64_t dropped_unlearned = 0;  ///< no learned token (left)
  int64_t chats = 0;              ///< examples that a chat template made, dropped ones too
  int64_t without_tool_calls = 0;  ///< examples with tool calls that the chat template leaves out
  int64_t without_tools = 0;       ///< examples with a list of tools that it leaves out
  int64_t without_system = 0;      ///< examples with a system text that Alpaca's prompt, or one that is a text, leaves out
  int64_t without_history = 0;     ///< examples with earlier turns that it leaves out
  int64_t without_context = 0;     ///< examples with a `context` that Alpaca's prompt leaves out
  int64_t with_special_texts = 0;  ///< examples in which texts of special tokens are plain characters (ExampleBuilder::plain_special_text)
  std::string special_text;        ///< the first such text
  std::string to_string() const;
  /// Lines for people, each naming the file: of what is in the records and in no example, or as what it may not be meant, though nothing
  /// is wrong with them.
  std::vector<std::string> warnings() const;
  bool operator==(const FileReport&) const = default;
};

/// Lengths in tokens; the median and the 95th percentile are nearest ranks.
struct LengthReport {
  int64_t examples = 0, tokens = 0, learned = 0;
  int64_t min = 0, median = 0, p95 = 0, max = 0;
  std::string to_string() const;
};
LengthReport lengths_of(const Dataset& dataset);

struct JobData {
  Dataset train;
  Dataset eval;                    ///< empty when the job has none
  std::vector<FileReport> files;   ///< the train files, then the eval file if there is one
  std::string cache_file;          ///< that holds the examples; empty: they are in memory
  bool was_cached = false;         ///< it was there before: nothing was tokenized
};

/// In tokens, of the jobs' examples, held-out ones included; 0 where there are none.
int64_t longest_row(const std::vector<JobData>& data);

/// How the job's training examples follow one another.
BatchOrder batch_order(const JobSpec& job, const Dataset& train);

/// Checksum over the training and the held-out examples.
std::string content_hash(const JobData& data);
/// The same of what each file gave, by its name; without files of which it is not known.
std::map<std::string, std::string> file_hashes(const JobData& data);

/// An example that is too long where truncation is `error`.
class ExampleTooLong : public UserError {
 public:
  using UserError::UserError;
};

/// Cuts an example to `max_length` tokens (0: no limit). `right` keeps the beginning, `left` the end (its first token is
/// then not learned: nothing predicts it). Returns false when the example is to be dropped. `error` throws ExampleTooLong.
bool truncate_example(Example& example, int64_t max_length, Truncation truncation);

}  // namespace cotune
