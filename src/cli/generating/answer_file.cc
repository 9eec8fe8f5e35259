#include "cli/generating/answer_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/atomic_file.h"
#include "base/counted.h"
#include "base/error.h"
#include "base/file.h"
#include "base/random.h"
#include "console/output_file.h"
#include "data/records/jsonl.h"
#include "engine/generation.h"

namespace cotune {
namespace {

using nlohmann::ordered_json;

uint64_t key_of_record(ordered_json record) {
  for (const char* field : answer_fields) record.erase(field);
  return key_of(record.dump());
}

/// What every line begins with.
constexpr std::string_view line_begin = "{\"index\":";

[[noreturn]] void refuse_line() { throw_user_error("is no answer of `cotune generate --prompts`; --overwrite begins the file anew"); }

AnswerKey key_of_line(const ordered_json& line, const std::vector<std::string>& adapters) {
  if (!line.is_object() || !line.contains("index") || !line.contains("adapter") || !line.contains("sample") || !line.contains("text") ||
      !line["index"].is_number_integer() || !line["sample"].is_number_integer() || !line["adapter"].is_string()) {
    refuse_line();
  }
  const auto& name = line["adapter"].get_ref<const std::string&>();
  const auto found = std::ranges::find(adapters, name);
  if (found == adapters.end()) throw_user_error("adapter: expected {}, found `{}`", fmt::join(adapters, " or "), name);
  return {line["index"].get<int64_t>(), static_cast<size_t>(found - adapters.begin()), line["sample"].get<int64_t>()};
}

}  // namespace

void OrderedAnswers::add(AnswerKey key, const std::string& line) {
  waiting_.emplace(key, line);
  while (!waiting_.empty() && waiting_.begin()->first == next_) {
    write_(waiting_.begin()->second);
    waiting_.erase(waiting_.begin());
    if (++next_.sample < samples_) continue;
    next_.sample = 0;
    if (++next_.adapter < adapters_) continue;
    next_ = {next_.index + 1, 0, 0};
  }
}

void OrderedAnswers::finish() {
  for (const auto& [key, line] : waiting_) write_(line);
  waiting_.clear();
}

StoredAnswers::StoredAnswers(std::filesystem::path path, Start start, const std::vector<std::string>& adapters, AnswerOptions options)
    : path_(where_link_leads(path)), start_(start), options_(std::move(options)) {
  const std::filesystem::path folder = std::filesystem::absolute(path_).parent_path();
  if (!std::filesystem::is_directory(folder)) throw_user_error("{}: there is no folder {}", path_.string(), folder.string());
  const bool is_there = std::filesystem::exists(path_);
  if (is_there && !std::filesystem::is_regular_file(path_)) throw_user_error("{}: is no regular file", path_.string());
  if (is_there && start == Start::fresh) {
    throw_user_error("{}: is there already: --resume gives the answers that it lacks, --overwrite begins it anew", path_.string());
  }
  if (!is_there || start == Start::overwrite) check_output("--output", path_, answers_output);
  if (!is_there) return;
  lock_ = std::make_unique<FileLock>(path_, FileLock::File::there);
  if (start != Start::resume) return;
  take_up(adapters);
  is_made_unknown_ = !places_.empty() && !options_.go_on_with(path_);
}

void StoredAnswers::take_up(const std::vector<std::string>& adapters) {
  const MappedFile file(path_);
  const std::string_view text = file.text();
  int number = 0;
  for (size_t end = 0; (end = text.find('\n', size_)) != std::string_view::npos; size_ = end + 1) {
    ++number;
    const std::string_view line = text.substr(size_, end - size_);
    try {
      const ordered_json answer = parse_json_line(line);
      const AnswerKey key = key_of_line(answer, adapters);
      if (answer.contains("stop") && answer["stop"] == to_string(StopReason::not_finite)) continue;
      places_[key] = {size_, line.size() + 1, key_of_record(answer), number};
    } catch (const std::runtime_error& error) {
      throw_user_error("{}:{}: {}", path_.string(), number, error.what());
    }
  }
  is_torn_ = size_ < text.size();
  try {
    check_torn(text.substr(size_), adapters);
  } catch (const std::runtime_error& error) {
    throw_user_error("{}:{}: {}", path_.string(), number + 1, error.what());
  }
}

void StoredAnswers::check_torn(std::string_view line, const std::vector<std::string>& adapters) {
  const size_t common = std::min(line.size(), line_begin.size());
  if (line.substr(0, common) != line_begin.substr(0, common)) refuse_line();
  if (ordered_json::accept(line)) key_of_line(parse_json_line(line), adapters);
}

void StoredAnswers::check(AnswerKey key, const ordered_json& record) const {
  const Place& place = places_.at(key);
  if (place.record == key_of_record(record)) return;
  throw_user_error("{}:{}: answers another prompt than the one numbered {} of the file that is given; --overwrite begins anew",
                   path_.string(), place.line, key.index);
}

void StoredAnswers::check_range(int64_t prompts, int64_t samples) const {
  for (const auto& [key, place] : places_) {
    if (key.index >= 0 && key.index < prompts && key.sample >= 0 && key.sample < samples) continue;
    throw_user_error("{}:{}: is sample {} of an answer to prompt {} (both from 0), of {} and {} that are asked for; pass what "
                     "the file was begun with, or --overwrite to begin it anew",
                     path_.string(), place.line, key.sample, key.index, counted(samples, "sample"), counted(prompts, "prompt"));
  }
}

void StoredAnswers::open() {
  if (lock_ == nullptr) {
    lock_ = std::make_unique<FileLock>(path_, FileLock::File::made_now);
  } else if (start_ == Start::resume) {
    std::filesystem::resize_file(path_, size_);
    is_torn_ = false;
  }
  file_ = std::make_unique<AppendedFile>(path_, start_ != Start::overwrite);
  options_.write(path_);
}

void StoredAnswers::add(AnswerKey key, const std::string& line) {
  if (file_ == nullptr) open();
  file_->write(line);
  places_[key] = {size_, line.size(), 0, 0};
  size_ += line.size();
}

void StoredAnswers::finish() {
  if (file_ != nullptr) file_->sync();
  uint64_t end = 0;
  for (const auto& [key, place] : places_) {
    if (place.begin != end) break;
    end += place.size;
  }
  if (end == size_ && !is_torn_) return;
  const MappedFile file(path_);
  AtomicFile ordered(path_);
  for (const auto& [key, place] : places_) ordered.append(file.text().substr(place.begin, place.size));
  ordered.commit();
}

}  // namespace cotune
