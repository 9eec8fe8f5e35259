/// Data files to examples.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/diagnostics.h"
#include "data/dataset.h"
#include "data/records/record_lines.h"
#include "data/template/chat_template.h"
#include "jobs/job.h"

namespace cotune {

/// A set that is asked for: its files and options, and what makes tokens of its records. What it points to must outlive it.
struct DataRequest {
  const DataSpec& spec;
  const TextEncoder& encoder;
  const ChatTemplate* chat_template = nullptr;  ///< null: records with messages are a mistake
  int64_t context_length = 0;                   ///< of the model; 0: no limit
  const JobSpec* job = nullptr;                 ///< whose set it is, for the places of its options in messages; null: no job's
};

/// The most tokens that an example of it may have: max_length, or context_length where that is 0 or smaller; 0: no limit.
int64_t longest_example(const DataRequest& request);

/// Which examples are trained on, and which are held out.
enum class DataPart { train, eval };

/// Takes examples in the order in which a single thread would read them.
class ExampleSink {
 public:
  virtual ~ExampleSink() = default;
  /// The file of the part's examples that follow.
  virtual void begin_source(DataPart part, const std::string& file) = 0;
  virtual void add(DataPart part, const Example& example) = 0;
};

/// Keeps them in memory.
class ExamplesInMemory : public ExampleSink {
 public:
  ExamplesInMemory(Dataset& train, Dataset& eval) : train_(train), eval_(eval) {}
  void begin_source(DataPart part, const std::string& file) override { of(part).begin_source(file); }
  void add(DataPart part, const Example& example) override { of(part).add(example); }

 private:
  Dataset& of(DataPart part) { return part == DataPart::train ? train_ : eval_; }
  Dataset& train_;
  Dataset& eval_;
};

/// How far reading has come.
struct ReadingProgress {
  const std::string& file;
  double part = -1;     ///< of this file, [0, 1]; -1: not known
  int64_t records = 0;  ///< of this file
  int64_t tokens = 0;   ///< of its examples
};

struct ReadingOptions {
  /// That make examples of records; a further one reads. Results and mistakes are the same with any number.
  int threads = 1;
  /// Called after every few hundred records, on the thread that reads.
  std::function<void(const ReadingProgress&)> progress = {};
};

/// Reads spec.train and spec.eval record by record; only tokens are kept.
///
/// Length: longest_example; longer ones by spec.truncation.
/// Split: with eval_fraction, an example of the train file goes to eval when a hash of its text falls below that share:
///   the same in every run and for every seed, and duplicates stay together. max_examples keeps the first so many
///   examples of each train file, before the split.
/// Format: spec.format, or what the first record of each file says by its fields.
/// Mistakes go to `diagnostics` with file, line, field, what was found and what is accepted: up to 20 per file,
///   up to 3 with the same message, then their number. So do a file that cannot be read or holds no examples, and eval together with
///   eval_fraction. A file of which no example is left is a mistake at the job's option that is the cause, else at the one that names the
///   file. The data returned then lacks the malformed lines. An empty spec.train is skipped.
/// Memory: a few MiB per thread beside what the sink keeps, and the longest lines.
std::vector<FileReport> read_examples(const DataRequest& request, ExampleSink& sink, Diagnostics& diagnostics,
                                      const ReadingOptions& options = {});

/// The same, kept in memory.
JobData read_job_data(const DataRequest& request, Diagnostics& diagnostics, const ReadingOptions& options = {});

/// Whether there are texts to be tokenized: by spec.format, or by the first record of each file. Of a file that cannot be read nothing is known.
bool has_texts(const DataSpec& spec);

/// Mistakes in the files that need no model to be seen: what is not JSON, other fields, formats that change.
void check_records(const DataSpec& spec, Diagnostics& diagnostics);

/// One train file's records, as above; `name` stands in messages. holds_out: eval_fraction is in force.
FileReport read_records(RecordLines& lines, const std::string& name, const DataRequest& request, bool holds_out, ExampleSink& sink,
                        Diagnostics& diagnostics, const ReadingOptions& options = {}, const std::function<double()>& part_read = {});

}  // namespace cotune
