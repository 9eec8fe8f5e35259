#include "data/dataset_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <limits>
#include <map>
#include <optional>

#include "base/error.h"
#include "base/random.h"
#include "base/record_mistakes.h"
#include "data/example_builder.h"
#include "data/lost_examples.h"
#include "data/ordered_work.h"
#include "data/records/chat_record.h"
#include "data/records/data_file.h"
#include "data/records/jsonl.h"
#include "data/records/record_error.h"
#include "data/records/unread_fields.h"

namespace cotune {
namespace {

struct RawRecord {
  std::string text;
  int line = 0;
  bool too_long = false, repaired = false;
  std::vector<std::string> nulls;
};

/// Up to about 100 characters of the fields that a record has, and of those that it has none of because they are null.
std::string fields_found(const nlohmann::ordered_json& record, const std::vector<std::string>& nulls) {
  std::vector<std::string> found;
  for (const auto& [name, value] : record.items()) found.push_back(name);
  for (const std::string& name : nulls) found.push_back(name + " (null)");
  std::string names;
  for (const std::string& name : found) {
    if (names.size() > 100) return names + ", …";
    names += (names.empty() ? "" : ", ") + name;
  }
  return names.empty() ? "none" : names;
}

/// The format of a record, or a RecordError when it is not the file's. unit: RecordLines::unit.
DataFormat checked_format(const nlohmann::ordered_json& record, const RawRecord& raw, std::string_view unit, const DataSpec& spec,
                          FileReport& report) {
  if (!record.is_object())
    throw RecordError("", fmt::format("expected an object, found {}", record.type_name()));
  for (const std::string_view name : required_fields(report.format)) {
    if (std::find(raw.nulls.begin(), raw.nulls.end(), name) == raw.nulls.end()) continue;
    throw RecordError(std::string(name), fmt::format("is null; expected {} in every {}", format_fields(report.format), unit));
  }
  const DataFormat found = format_of(record);
  if (report.format == DataFormat::automatic && found != DataFormat::automatic) {
    report.format = found;
    report.format_line = raw.line;
  }
  if (report.format == DataFormat::automatic) {
    std::vector<std::string> names;
    for (const auto& [name, value] : record.items()) names.push_back(name);
    throw RecordError("", fmt::format("expected the fields {}; found {}{}", format_fields(report.format), fields_found(record, raw.nulls),
                                      advice_for_fields(names)));
  }
  if (spec.format == DataFormat::automatic && found != report.format) {
    throw RecordError("", fmt::format("expected the fields {}, as in {} {}: a file has one format; found {}", format_fields(report.format),
                                      unit, report.format_line, fields_found(record, raw.nulls)));
  }
  return report.format;
}

/// What became of a record: what was made of it, or its mistake.
template <typename Made>
struct Outcome {
  int line = 0;
  bool repaired = false, is_too_long = false;
  std::optional<Made> made;
  std::string field, mistake;
};

/// Records that one thread takes at once, and together with what waits for all threads.
constexpr size_t most_chunk_records = 256, most_chunk_bytes = size_t{256} << 10;
constexpr size_t most_chunks_per_thread = 4, most_waiting_bytes = size_t{32} << 20;

struct Chunk {
  std::vector<RawRecord> records;
  size_t bytes = 0;
};

/// Goes through the records of one file. make(record, format) is called on several threads, and what it throws is the record's
/// mistake; take(made, report) in the order of the file, until it returns false.
template <typename Made>
class RecordWalk {
 public:
  using Make = std::function<Made(const nlohmann::ordered_json& record, DataFormat format)>;
  using Take = std::function<bool(Made&& made, int line, FileReport& report)>;

  RecordWalk(RecordLines& lines, const std::string& name, const DataSpec& spec, Diagnostics& diagnostics, Make make, Take take)
      : lines_(lines), name_(name), spec_(spec), diagnostics_(diagnostics), mistakes_(name, diagnostics, lines.unit()),
        make_(std::move(make)), take_(std::move(take)) {
    report_.file = name;
    report_.format = spec.format;
  }

  /// step: called now and then.
  FileReport go(int threads, const std::function<void(const FileReport&)>& step) {
    size_t bytes = 0;
    const auto is_small = [&] {
      return static_cast<size_t>(report_.records) < most_chunk_records && bytes < most_chunk_bytes;
    };
    while (more_ && (threads <= 1 || is_small() || report_.format == DataFormat::automatic)) {  // the first records say the format
      if (!lines_.next()) return finish();
      const RawRecord record = this_record();
      bytes += record.text.size();
      if (report_.records == 0 && !record.too_long && record.text.starts_with('[')) {
        take(list_of_records(record));
        more_ = false;  // every other line would be a mistake too
        break;
      }
      take(outcome_of(record, report_));
      if (static_cast<size_t>(report_.records) % most_chunk_records == 0) step(report_);
    }
    if (more_) go_on_in_parallel(threads, step);
    return finish();
  }

 private:
  RawRecord this_record() const { return {lines_.text(), lines_.line(), lines_.too_long(), lines_.repaired(), lines_.nulls()}; }

  static Outcome<Made> list_of_records(const RawRecord& raw) {
    return {.line = raw.line, .repaired = raw.repaired, .made = {}, .field = {},
            .mistake = std::string(list_complaint)};
  }

  void go_on_in_parallel(int threads, const std::function<void(const FileReport&)>& step) {
    const FileReport known = report_;  // the format does not change any more
    OrderedWork<Chunk, std::vector<Outcome<Made>>> work(threads, [this, &known](Chunk& chunk) {
      std::vector<Outcome<Made>> outcomes;
      FileReport own = known;
      for (const RawRecord& record : chunk.records) outcomes.push_back(outcome_of(record, own));
      chunk.records = {};
      return outcomes;
    });
    std::deque<size_t> waiting;  // bytes
    size_t waiting_bytes = 0;
    std::exception_ptr failure;
    bool at_end = false;
    while (more_ && (!at_end || work.count() > 0)) {
      const bool has_room = work.count() < most_chunks_per_thread * static_cast<size_t>(threads) && waiting_bytes < most_waiting_bytes;
      if (!at_end && has_room) {
        Chunk chunk;
        try {
          at_end = !read(chunk);
        } catch (...) {  // comes after the mistakes of the records before it
          failure = std::current_exception();
          at_end = true;
        }
        waiting.push_back(chunk.bytes);
        waiting_bytes += chunk.bytes;
        work.give(std::move(chunk));
        continue;
      }
      for (Outcome<Made>& outcome : work.take()) {
        if (more_) take(std::move(outcome));
      }
      waiting_bytes -= waiting.front();
      waiting.pop_front();
      step(report_);
    }
    if (more_ && failure) std::rethrow_exception(failure);
  }

  /// False at the end of the file.
  bool read(Chunk& chunk) {
    while (chunk.records.size() < most_chunk_records && chunk.bytes < most_chunk_bytes) {
      if (!lines_.next()) return false;
      chunk.records.push_back(this_record());
      chunk.bytes += chunk.records.back().text.size();
    }
    return true;
  }

  Outcome<Made> outcome_of(const RawRecord& raw, FileReport& report) const {
    Outcome<Made> outcome{.line = raw.line, .repaired = raw.repaired, .made = {}, .field = {}, .mistake = {}};
    try {
      if (raw.too_long) {
        throw RecordError("", lines_.too_long_complaint());
      }
      const nlohmann::ordered_json record = parse_json_line(raw.text, &outcome.repaired);
      const DataFormat format = checked_format(record, raw, lines_.unit(), spec_, report);
      outcome.made = make_(record, format);
    } catch (const RecordError& error) {
      outcome.field = error.field();
      outcome.mistake = error.what();
    } catch (const ExampleTooLong& error) {
      outcome.is_too_long = true;
      outcome.mistake = error.what();
    } catch (const std::exception& error) {
      outcome.mistake = complaint_of(error);
    }
    return outcome;
  }

  void take(Outcome<Made> outcome) {
    ++report_.records;
    report_.repaired += outcome.repaired;
    if (outcome.made) {
      more_ = take_(std::move(*outcome.made), outcome.line, report_);
    } else {
      report_.too_long += outcome.is_too_long;
      mistakes_.add(outcome.line, outcome.field, outcome.mistake);
    }
  }

  FileReport finish() {
    mistakes_.finish();
    report_.malformed = mistakes_.count() - report_.too_long;
    if (report_.records == 0) diagnostics_.add(name_, 0, "", "the file holds no examples");
    return report_;
  }

  RecordLines& lines_;
  const std::string& name_;
  const DataSpec& spec_;
  Diagnostics& diagnostics_;
  RecordMistakes mistakes_;
  Make make_;
  Take take_;
  FileReport report_;
  bool more_ = true;
};

/// Calls use(file) with the opened file, or adds why it cannot be read.
template <typename Use>
void with_file(const std::string& path, Diagnostics& diagnostics, Use use) {
  try {
    DataFile file(path, record_fields());
    use(file);
    if (file.is_broken()) diagnostics.add(path, 0, "", "cannot read the file to its end");
  } catch (const UserError& error) {
    diagnostics.add(path, 0, "", error.what());
  }
}

/// As format_of() has it; automatic where the line is no record.
DataFormat format_of_line(const std::string& line) {
  try {
    return format_of(parse_json_line(line));
  } catch (const std::exception&) {
    return DataFormat::automatic;
  }
}

/// Of the file of held-out examples every one counts.
DataSpec eval_spec(const DataSpec& spec) {
  DataSpec whole = spec;
  whole.max_examples = 0;
  return whole;
}

bool holds_learned(const Example& example) { return std::ranges::find(example.learned, uint8_t{1}) != example.learned.end(); }

/// What one record gives.
struct MadeExample {
  Example example;
  bool is_chat = false, was_padded = false, was_truncated = false, is_held_out = false;
  Loss loss = Loss::none;
  LeftOut left_out;
  std::string special_text;
};

/// One file's examples to `part`, or, where it holds out, to both.
FileReport read_part(RecordLines& lines, const std::string& name, const DataRequest& request, DataPart part, bool holds_out,
                     ExampleSink& sink, Diagnostics& diagnostics, const ReadingOptions& options,
                     const std::function<double()>& part_read) {
  const DataSpec& spec = request.spec;
  const int64_t max_length = longest_example(request);
  const ExampleBuilder builder(request.encoder, request.chat_template, spec.train_on_prompt, spec.special_tokens);
  const auto make = [&](const nlohmann::ordered_json& record, DataFormat format) {
    MadeExample made;
    made.example = builder.build(record, format);
    made.is_chat = is_chat(record, format);
    const size_t whole = made.example.tokens.size();
    made.was_padded = format == DataFormat::tokens && whole < record["input_ids"].size();
    const bool learns = holds_learned(made.example), fits = truncate_example(made.example, max_length, spec.truncation);
    made.was_truncated = made.example.tokens.size() < whole;
    if (!fits) {
      made.loss = Loss::too_long;
    } else if (!learns) {
      made.loss = loss_of_whole(record, format, spec.train_on_prompt);
    } else if (!holds_learned(made.example)) {
      made.loss = Loss::cut;
    } else {
      made.left_out = builder.left_out(record, format);
      made.special_text = builder.plain_special_text(record, format);
    }
    made.is_held_out = holds_out && uniform(ExampleBuilder::content_key(record, format), 0) < spec.eval_fraction;
    return made;
  };
  int64_t kept = 0, tokens = 0;
  std::map<Loss, int64_t> losses;
  const auto take = [&](MadeExample&& made, int line, FileReport& report) {
    report.chats += made.is_chat;
    if (made.loss != Loss::none) {
      ++(made.loss == Loss::too_long ? report.dropped_long : report.dropped_unlearned);
      ++losses[made.loss];
      return true;
    }
    report.padded += made.was_padded;
    report.truncated += made.was_truncated;
    report.without_tool_calls += made.left_out.tool_calls;
    report.without_tools += made.left_out.tools;
    report.without_system += made.left_out.system;
    report.without_history += made.left_out.history;
    report.without_context += made.left_out.context;
    if (!made.special_text.empty() && ++report.with_special_texts == 1) report.special_text = std::move(made.special_text);
    ++kept;
    tokens += std::ssize(made.example.tokens);
    made.example.line = line;
    sink.add(made.is_held_out ? DataPart::eval : part, made.example);
    return spec.max_examples <= 0 || kept < spec.max_examples;
  };
  RecordWalk<MadeExample> walk(lines, name, spec, diagnostics, make, take);
  const FileReport report = walk.go(options.threads, [&](const FileReport& so_far) {
    if (options.progress) options.progress({name, part_read ? part_read() : -1, so_far.records, tokens});
  });
  if (kept == 0 && report.records > 0 && report.malformed + report.too_long == 0) {
    add_nothing_left(name, losses, request, part, diagnostics);
  }
  return report;
}

}  // namespace

int64_t longest_example(const DataRequest& request) {
  const int64_t asked = request.spec.max_length, context = request.context_length;
  return asked <= 0 || (context > 0 && context < asked) ? std::max<int64_t>(0, context) : asked;
}

FileReport read_records(RecordLines& lines, const std::string& name, const DataRequest& request, bool holds_out, ExampleSink& sink,
                        Diagnostics& diagnostics, const ReadingOptions& options, const std::function<double()>& part_read) {
  return read_part(lines, name, request, DataPart::train, holds_out, sink, diagnostics, options, part_read);
}

bool has_texts(const DataSpec& spec) {
  if (spec.format != DataFormat::automatic) return spec.format != DataFormat::tokens;
  std::vector<std::string> paths;
  for (const TrainFile& file : spec.train) paths.push_back(file.path);
  if (!spec.eval.empty()) paths.push_back(spec.eval);
  return std::ranges::any_of(paths, [](const std::string& path) {
    DataFormat format = DataFormat::automatic;
    Diagnostics ignored;
    with_file(path, ignored, [&](DataFile& file) {
      while (format == DataFormat::automatic && file.lines().next()) format = format_of_line(file.lines().text());
    });
    return format != DataFormat::automatic && format != DataFormat::tokens;
  });
}

void check_records(const DataSpec& spec, Diagnostics& diagnostics) {
  struct Nothing {};
  const auto check = [&](const std::string& path, const DataSpec& by) {
    if (path.empty()) return;
    with_file(path, diagnostics, [&](DataFile& file) {
      int64_t kept = 0;
      RecordWalk<Nothing> walk(
          file.lines(), path, by, diagnostics,
          [](const nlohmann::ordered_json& record, DataFormat format) {
            ExampleBuilder::check(record, format);
            return Nothing{};
          },
          [&](Nothing, int, FileReport&) { return by.max_examples <= 0 || ++kept < by.max_examples; });
      walk.go(1, [](const FileReport&) {});
    });
  };
  for (const TrainFile& file : spec.train) check(file.path, spec);
  check(spec.eval, eval_spec(spec));
}

std::vector<FileReport> read_examples(const DataRequest& request, ExampleSink& sink, Diagnostics& diagnostics,
                                      const ReadingOptions& options) {
  const DataSpec& spec = request.spec;
  if (!spec.eval.empty() && spec.eval_fraction > 0) {
    diagnostics.add(names_of_train_files(spec), 0, "data", "eval and eval_fraction are both given; give one of them");
  }
  std::vector<FileReport> reports;
  const auto read = [&](const std::string& path, const DataSpec& by, DataPart part) {
    sink.begin_source(part, path);
    if (part == DataPart::train && spec.eval.empty()) sink.begin_source(DataPart::eval, path);
    FileReport& report = reports.emplace_back(FileReport{.file = path, .format = by.format});
    with_file(path, diagnostics, [&](DataFile& file) {
      const DataRequest one{by, request.encoder, request.chat_template, request.context_length, request.job};
      report = read_part(file.lines(), path, one, part, spec.eval.empty() && spec.eval_fraction > 0, sink, diagnostics, options,
                         [&file] { return file.part_read(); });
    });
  };
  for (const TrainFile& file : spec.train) read(file.path, spec, DataPart::train);
  if (!spec.eval.empty()) read(spec.eval, eval_spec(spec), DataPart::eval);
  return reports;
}

JobData read_job_data(const DataRequest& request, Diagnostics& diagnostics, const ReadingOptions& options) {
  JobData data;
  ExamplesInMemory sink(data.train, data.eval);
  data.files = read_examples(request, sink, diagnostics, options);
  return data;
}

}  // namespace cotune
