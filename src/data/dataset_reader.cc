#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>

#include "base/error.h"
#include "base/random.h"
#include "data/dataset.h"
#include "data/example_builder.h"
#include "data/jsonl.h"

namespace cotune {
namespace {

constexpr int64_t max_reported = 20;

/// Reports the first mistakes of a file and counts the rest.
class Mistakes {
 public:
  Mistakes(std::string file, Diagnostics& diagnostics) : file_(std::move(file)), diagnostics_(diagnostics) {}

  void add(int line, const std::string& field, const std::string& message) {
    if (count_++ < max_reported) diagnostics_.add(file_, line, field, message);
    last_line_ = line;
  }
  void finish() {
    if (count_ > max_reported) {
      diagnostics_.add(file_, last_line_, "", fmt::format("and {} more such lines, this is the last", count_ - max_reported));
    }
  }
  int64_t count() const { return count_; }

 private:
  std::string file_;
  Diagnostics& diagnostics_;
  int64_t count_ = 0;
  int last_line_ = 0;
};

/// The format of a record, or a RecordError when it is not the file's.
DataFormat checked_format(const nlohmann::ordered_json& record, const DataSpec& spec, FileReport& report) {
  if (!record.is_object()) throw RecordError("", fmt::format("expected an object, found {}", record.type_name()));
  const DataFormat found = format_of(record);
  if (report.format == DataFormat::automatic) report.format = found;
  if (report.format == DataFormat::automatic || (spec.format == DataFormat::automatic && found != report.format)) {
    std::string names;
    for (const auto& [name, value] : record.items()) {
      if (names.size() > 100) {
        names += ", …";
        break;
      }
      names += (names.empty() ? "" : ", ") + name;
    }
    throw RecordError("", fmt::format("expected the fields {}; found {}", format_fields(report.format),
                                      names.empty() ? "none" : names));
  }
  return report.format;
}

}  // namespace

FileReport read_examples(std::istream& stream, const std::string& name, const DataSpec& spec,
                         const TextEncoder& encoder, const ChatTemplate* chat_template, int64_t context_length,
                         Dataset& train, Dataset* eval, Diagnostics& diagnostics) {
  int64_t max_length = spec.max_length;
  if (max_length <= 0 || (context_length > 0 && context_length < max_length)) max_length = context_length;
  const ExampleBuilder builder(encoder, chat_template, spec.train_on_prompt);
  FileReport report;
  report.file = name;
  report.format = spec.format;
  Mistakes mistakes(name, diagnostics);
  int64_t kept = 0;
  for (JsonlReader reader(stream); (spec.max_examples <= 0 || kept < spec.max_examples) && reader.next();) {
    ++report.records;
    report.repaired += reader.repaired();
    try {
      if (reader.too_long()) {
        throw RecordError("", fmt::format("the line is longer than {} MiB", JsonlReader::max_line_bytes >> 20));
      }
      const nlohmann::ordered_json record = parse_json_line(reader.text());
      const DataFormat format = checked_format(record, spec, report);
      Example example = builder.build(record, format);
      example.line = reader.line();
      const size_t whole = example.tokens.size();
      if (!truncate_example(example, max_length, spec.truncation)) {
        ++report.dropped_long;
        continue;
      }
      report.truncated += example.tokens.size() < whole;
      if (std::find(example.learned.begin(), example.learned.end(), uint8_t{1}) == example.learned.end()) {
        ++report.dropped_unlearned;
        continue;
      }
      ++kept;
      const bool held_out = eval && spec.eval_fraction > 0 &&
                            uniform(ExampleBuilder::content_key(record, format), 0) < spec.eval_fraction;
      (held_out ? *eval : train).add(example);
    } catch (const RecordError& error) {
      mistakes.add(reader.line(), error.field(), error.what());
    } catch (const UserError& error) {
      mistakes.add(reader.line(), "", error.what());
    } catch (const std::runtime_error& error) {
      mistakes.add(reader.line(), "", error.what());
    }
  }
  mistakes.finish();
  report.malformed = mistakes.count();
  if (kept == 0 && mistakes.count() == 0) {
    diagnostics.add(name, 0, "", report.records == 0
                                     ? "the file holds no examples"
                                     : "no example is left: " + report.to_string().substr(name.size() + 2));
  }
  return report;
}

JobData read_job_data(const DataSpec& spec, const TextEncoder& encoder, const ChatTemplate* chat_template,
                      int64_t context_length, Diagnostics& diagnostics) {
  const auto open = [](const std::string& path) {
    std::error_code unknown;
    if (std::filesystem::exists(path, unknown) && !std::filesystem::is_regular_file(path, unknown)) {
      throw_user_error("{}: is not a regular file", path);
    }
    std::ifstream stream(path, std::ios::binary);
    if (!stream || (stream.peek(), stream.bad())) throw_user_error("{}: cannot open: {}", path, std::strerror(errno));
    stream.clear();
    return stream;
  };
  if (!spec.eval.empty() && spec.eval_fraction > 0) {
    diagnostics.add(spec.train, 0, "data", "eval and eval_fraction are both given; give one of them");
  }
  JobData data{Dataset(spec.train), Dataset(spec.eval.empty() ? spec.train : spec.eval), {}};
  std::ifstream train = open(spec.train);
  data.files.push_back(read_examples(train, spec.train, spec, encoder, chat_template, context_length, data.train,
                                     spec.eval.empty() ? &data.eval : nullptr, diagnostics));
  if (train.bad()) throw_user_error("{}: cannot read the file to its end", spec.train);
  if (!spec.eval.empty()) {
    DataSpec whole = spec;
    whole.max_examples = 0;
    std::ifstream eval = open(spec.eval);
    data.files.push_back(
        read_examples(eval, spec.eval, whole, encoder, chat_template, context_length, data.eval, nullptr, diagnostics));
    if (eval.bad()) throw_user_error("{}: cannot read the file to its end", spec.eval);
  }
  return data;
}

}  // namespace cotune
