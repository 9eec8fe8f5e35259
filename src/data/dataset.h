/// A job's examples: read from its files, truncated, split into train and eval, kept as tokens only.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/diagnostics.h"
#include "data/batch_order.h"
#include "data/chat_template.h"
#include "data/example.h"
#include "data/record_lines.h"
#include "jobs/job.h"

namespace cotune {

/// Examples in flat arrays: 5 bytes per token and 12 per example. Those of one file stand together.
class Dataset {
 public:
  Dataset() = default;
  explicit Dataset(std::string source) { begin_source(std::move(source)); }

  /// The file of the examples that are added from now on.
  void begin_source(std::string name);
  void add(const Example& example);
  int64_t size() const { return static_cast<int64_t>(lines_.size()); }
  bool empty() const { return lines_.empty(); }
  std::span<const int32_t> tokens(int64_t index) const;
  std::span<const uint8_t> learned(int64_t index) const;
  int line(int64_t index) const { return lines_[static_cast<size_t>(index)]; }
  int64_t length(int64_t index) const { return static_cast<int64_t>(tokens(index).size()); }
  const std::string& source(int64_t index) const;
  size_t source_count() const { return sources_.size(); }
  int64_t source_size(size_t source) const;  ///< its examples
  Example example(int64_t index) const;

  int64_t token_count() const { return static_cast<int64_t>(tokens_.size()); }
  int64_t learned_count() const { return learned_count_; }
  /// Checksum over every example's length, tokens and labels, in order, and over where files begin if there are several: equal
  /// for equal training data wherever it was read from. 32 hexadecimal digits.
  std::string content_hash() const;

 private:
  struct Source {
    std::string name;
    int64_t begin = 0;
  };
  std::vector<Source> sources_;
  std::vector<int32_t> tokens_;
  std::vector<uint8_t> learned_;
  std::vector<uint64_t> ends_;  ///< of each example in tokens_
  std::vector<int> lines_;
  int64_t learned_count_ = 0;
};

/// What became of the lines of one file.
struct FileReport {
  std::string file;
  DataFormat format = DataFormat::automatic;
  int format_line = 0;            ///< of the record that said so; 0: the format was given
  int64_t records = 0;            ///< lines that hold something
  int64_t malformed = 0;
  int64_t repaired = 0;           ///< lines with bytes that were not UTF-8
  int64_t truncated = 0;
  int64_t dropped_long = 0;       ///< truncation: drop
  int64_t dropped_unlearned = 0;  ///< no learned token (left)
  std::string to_string() const;
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
};

/// How the job's training examples follow one another.
BatchOrder batch_order(const JobSpec& job, const Dataset& train);

/// Checksum over the training and the held-out examples.
std::string content_hash(const JobData& data);

/// Cuts an example to `max_length` tokens (0: no limit). `right` keeps the beginning, `left` the end (its first token is
/// then not learned: nothing predicts it). Returns false when the example is to be dropped. `error` throws UserError.
bool truncate_example(Example& example, int64_t max_length, Truncation truncation);

/// Reads spec.train and spec.eval record by record; only tokens are kept.
///
/// Length: spec.max_length, or context_length where that is 0 or smaller (0: no limit).
/// Split: with eval_fraction, an example of the train file goes to eval when a hash of its text falls below that share:
///   the same in every run and for every seed, and duplicates stay together. max_examples keeps the first so many
///   examples of each train file, before the split.
/// Format: spec.format, or what the first record of each file says by its fields.
/// Mistakes go to `diagnostics` with file, line, field, what was found and what is accepted: up to 20 per file,
///   up to 3 with the same message, then their number. So do a file that cannot be read or holds no examples, and eval together with eval_fraction. The data
///   returned then lacks the malformed lines. An empty spec.train is skipped.
/// `chat_template` may be null. The pointers are not kept.
JobData read_job_data(const DataSpec& spec, const TextEncoder& encoder, const ChatTemplate* chat_template,
                      int64_t context_length, Diagnostics& diagnostics);

/// Mistakes in the files that need no model to be seen: what is not JSON, other fields, formats that change.
void check_records(const DataSpec& spec, Diagnostics& diagnostics);

/// One file's records into `train` and `eval`, as above; `name` stands in messages. Pure but for the lines.
FileReport read_examples(RecordLines& lines, const std::string& name, const DataSpec& spec,
                         const TextEncoder& encoder, const ChatTemplate* chat_template, int64_t context_length,
                         Dataset& train, Dataset* eval, Diagnostics& diagnostics);

}  // namespace cotune
