#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/random.h"
#include "data/data_file.h"
#include "data/dataset.h"
#include "data/example_builder.h"
#include "data/jsonl.h"

namespace cotune {
namespace {

constexpr int64_t most_reported = 20, most_alike = 3;

/// Reports the first mistakes of a file and counts the rest.
class Mistakes {
 public:
  Mistakes(std::string file, Diagnostics& diagnostics) : file_(std::move(file)), diagnostics_(diagnostics) {}

  void add(int line, const std::string& field, const std::string& message) {
    ++count_;
    if (reported_ == most_reported || ++alike_[field + message] > most_alike) {
      last_line_ = line;
      return;
    }
    ++reported_;
    diagnostics_.add(file_, line, field, message);
  }
  void finish() {
    if (count_ > reported_) {
      diagnostics_.add(file_, last_line_, "",
                       fmt::format("and {} more such lines, this is the last", count_ - reported_));
    }
  }
  int64_t count() const { return count_; }

 private:
  std::string file_;
  Diagnostics& diagnostics_;
  std::map<std::string, int64_t> alike_;  ///< at most most_reported messages are in it, and one more
  int64_t count_ = 0, reported_ = 0;
  int last_line_ = 0;
};

/// The format of a record, or a RecordError when it is not the file's.
DataFormat checked_format(const nlohmann::ordered_json& record, int line, const DataSpec& spec,
                          FileReport& report) {
  if (!record.is_object())
    throw RecordError("", fmt::format("expected an object, found {}", record.type_name()));
  const DataFormat found = format_of(record);
  if (report.format == DataFormat::automatic && found != DataFormat::automatic) {
    report.format = found;
    report.format_line = line;
  }
  if (report.format == DataFormat::automatic ||
      (spec.format == DataFormat::automatic && found != report.format)) {
    std::string names;
    for (const auto& [name, value] : record.items()) {
      if (names.size() > 100) {
        names += ", …";
        break;
      }
      names += (names.empty() ? "" : ", ") + name;
    }
    const std::string reason = report.format_line > 0
                                   ? fmt::format(", as in line {}: a file has one format", report.format_line)
                                   : "";
    throw RecordError("", fmt::format("expected the fields {}{}; found {}", format_fields(report.format),
                                      reason, names.empty() ? "none" : names));
  }
  return report.format;
}

/// Calls use(record, format, line) for every record until it returns false; what it throws is the record's
/// mistake.
template <typename Use>
FileReport for_each_record(RecordLines& lines, const std::string& name, const DataSpec& spec,
                           Diagnostics& diagnostics, Use use) {
  FileReport report;
  report.file = name;
  report.format = spec.format;
  Mistakes mistakes(name, diagnostics);
  bool more = true;
  while (more && lines.next()) {
    ++report.records;
    report.repaired += lines.repaired();
    try {
      if (lines.too_long()) {
        throw RecordError("",
                          fmt::format("the line is longer than {} MiB", RecordLines::max_line_bytes >> 20));
      }
      if (report.records == 1 && lines.text().starts_with('[')) {
        more = false;  // every other line would be a mistake too
        throw RecordError("", "expected an object on each line (JSONL), found a list; `jq -c '.[]'` makes lines of one");
      }
      const nlohmann::ordered_json record = parse_json_line(lines.text());
      const DataFormat format = checked_format(record, lines.line(), spec, report);
      more = use(record, format, lines.line(), report);
    } catch (const RecordError& error) {
      mistakes.add(lines.line(), error.field(), error.what());
    } catch (const std::runtime_error& error) {
      mistakes.add(lines.line(), "", error.what());
    }
  }
  mistakes.finish();
  report.malformed = mistakes.count();
  if (report.records == 0) diagnostics.add(name, 0, "", "the file holds no examples");
  return report;
}

/// Calls use(lines) with the opened file, or adds why it cannot be read.
template <typename Use>
void with_file(const std::string& path, Diagnostics& diagnostics, Use use) {
  try {
    DataFile file(path, record_fields());
    use(file.lines());
    if (file.is_broken()) diagnostics.add(path, 0, "", "cannot read the file to its end");
  } catch (const UserError& error) {
    diagnostics.add(path, 0, "", error.what());
  }
}

/// Of the file of held-out examples every one counts.
DataSpec eval_spec(const DataSpec& spec) {
  DataSpec whole = spec;
  whole.max_examples = 0;
  return whole;
}

}  // namespace

FileReport read_examples(RecordLines& lines, const std::string& name, const DataSpec& spec,
                         const TextEncoder& encoder, const ChatTemplate* chat_template,
                         int64_t context_length, Dataset& train, Dataset* eval, Diagnostics& diagnostics) {
  int64_t max_length = spec.max_length;
  if (max_length <= 0 || (context_length > 0 && context_length < max_length)) max_length = context_length;
  const ExampleBuilder builder(encoder, chat_template, spec.train_on_prompt);
  int64_t kept = 0;
  const auto keep = [&](const nlohmann::ordered_json& record, DataFormat format, int line,
                        FileReport& report) {
    Example example = builder.build(record, format);
    example.line = line;
    const size_t whole = example.tokens.size();
    if (!truncate_example(example, max_length, spec.truncation)) {
      ++report.dropped_long;
      return true;
    }
    report.truncated += example.tokens.size() < whole;
    if (std::find(example.learned.begin(), example.learned.end(), uint8_t{1}) == example.learned.end()) {
      ++report.dropped_unlearned;
      return true;
    }
    ++kept;
    const bool held_out = eval && spec.eval_fraction > 0 &&
                          uniform(ExampleBuilder::content_key(record, format), 0) < spec.eval_fraction;
    (held_out ? *eval : train).add(example);
    return spec.max_examples <= 0 || kept < spec.max_examples;
  };
  const FileReport report = for_each_record(lines, name, spec, diagnostics, keep);
  if (kept == 0 && report.records > 0 && report.malformed == 0) {
    diagnostics.add(name, 0, "", "no example is left: " + report.to_string().substr(name.size() + 2));
  }
  return report;
}

void check_records(const DataSpec& spec, Diagnostics& diagnostics) {
  const auto check = [&](const std::string& path, const DataSpec& by) {
    if (path.empty()) return;
    with_file(path, diagnostics, [&](RecordLines& lines) {
      int64_t kept = 0;
      for_each_record(lines, path, by, diagnostics,
                      [&](const nlohmann::ordered_json& record, DataFormat format, int, FileReport&) {
                        ExampleBuilder::check(record, format);
                        return by.max_examples <= 0 || ++kept < by.max_examples;
                      });
    });
  };
  for (const TrainFile& file : spec.train) check(file.path, spec);
  check(spec.eval, eval_spec(spec));
}

JobData read_job_data(const DataSpec& spec, const TextEncoder& encoder, const ChatTemplate* chat_template,
                      int64_t context_length, Diagnostics& diagnostics) {
  if (!spec.eval.empty() && spec.eval_fraction > 0) {
    diagnostics.add(names_of_train_files(spec), 0, "data", "eval and eval_fraction are both given; give one of them");
  }
  JobData data;
  const auto read = [&](const std::string& path, const DataSpec& by, Dataset& train, Dataset* eval) {
    train.begin_source(path);
    if (eval != nullptr) eval->begin_source(path);
    with_file(path, diagnostics, [&](RecordLines& lines) {
      data.files.push_back(
          read_examples(lines, path, by, encoder, chat_template, context_length, train, eval, diagnostics));
    });
  };
  for (const TrainFile& file : spec.train) read(file.path, spec, data.train, spec.eval.empty() ? &data.eval : nullptr);
  if (!spec.eval.empty()) read(spec.eval, eval_spec(spec), data.eval, nullptr);
  return data;
}

}  // namespace cotune
