#include "data/dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "base/counted.h"
#include "base/error.h"

namespace cotune {

void append_words(const Example& example, std::vector<int32_t>& words) {
  words.insert(words.end(), example.tokens.begin(), example.tokens.end());
  const size_t flags = words.size();
  words.resize(flags + (example.learned.size() + 3) / 4);
  if (!example.learned.empty()) std::memcpy(words.data() + flags, example.learned.data(), example.learned.size());
}

void Dataset::add(const Example& example) {
  COTUNE_CHECK(!mapped_ && example.tokens.size() == example.learned.size());
  if (held_ == nullptr || held_.use_count() > 1) held_ = std::make_shared<Held>(held());
  held_->entries.push_back({held_->words.size(), static_cast<uint32_t>(example.tokens.size()), example.line});
  append_words(example, held_->words);
  held_->token_count += std::ssize(example.tokens);
  held_->learned_count += std::count(example.learned.begin(), example.learned.end(), uint8_t{1});
  for (const int32_t token : example.tokens) held_->largest_token = std::max(held_->largest_token, token);
}

const Dataset::Held& Dataset::held() const {
  static const Held none;
  return held_ != nullptr ? *held_ : none;
}

void Dataset::begin_source(std::string name) {
  COTUNE_CHECK(!mapped_);
  sources_.push_back({.name = std::move(name), .begin = size(), .content_hash = {}});
}

const std::string& Dataset::source_name(size_t source) const {
  COTUNE_CHECK(source < sources_.size());
  return sources_[source].name;
}

const std::string& Dataset::source(int64_t index) const {
  static const std::string none;
  const auto next = std::find_if(sources_.begin(), sources_.end(), [index](const Source& source) { return source.begin > index; });
  return next == sources_.begin() ? none : std::prev(next)->name;
}

int64_t Dataset::source_size(size_t source) const {
  COTUNE_CHECK(source < sources_.size());
  return (source + 1 < sources_.size() ? sources_[source + 1].begin : size()) - sources_[source].begin;
}

const ExampleEntry& Dataset::entry(int64_t index) const {
  COTUNE_CHECK(index >= 0 && index < size(), "example {} of {}", index, size());
  return entries()[static_cast<size_t>(index)];
}

std::span<const int32_t> Dataset::tokens(int64_t index) const {
  const ExampleEntry& place = entry(index);
  return words().subspan(place.begin, place.length);
}

std::span<const uint8_t> Dataset::learned(int64_t index) const {
  const ExampleEntry& place = entry(index);
  return {reinterpret_cast<const uint8_t*>(words().data() + place.begin + place.length), place.length};
}

Example Dataset::example(int64_t index) const {
  const auto ids = tokens(index);
  const auto labels = learned(index);
  return {{ids.begin(), ids.end()}, {labels.begin(), labels.end()}, source(index), line(index)};
}

std::string Dataset::content_hash() const {
  if (mapped_) return mapped_->totals.content_hash;
  DatasetChecksum sum;
  size_t source = 0;
  for (int64_t i = 0; i <= size(); ++i) {
    for (; source < sources_.size() && sources_[source].begin == i; ++source) sum.begin_source();
    if (i < size()) sum.add(tokens(i), learned(i));
  }
  return sum.text();
}

std::string Dataset::source_hash(size_t source) const {
  const int64_t count = source_size(source), begin = sources_[source].begin;
  if (mapped_) return sources_[source].content_hash;
  DatasetChecksum sum;
  sum.begin_source();
  for (int64_t i = begin; i < begin + count; ++i) sum.add(tokens(i), learned(i));
  return sum.text();
}

void Dataset::drop_pages() const {
  if (mapped_ && mapped_->file != nullptr) mapped_->file->drop_pages();
}

void DatasetChecksum::begin_source() {
  if (has_source_) borders_ += fmt::format(" {}", example_count_);
  has_source_ = true;
}

void DatasetChecksum::add(std::span<const int32_t> tokens, std::span<const uint8_t> learned) {
  token_count_ += tokens.size();
  ++example_count_;
  ends_.add(std::as_bytes(std::span(&token_count_, 1)));
  tokens_.add(std::as_bytes(tokens));
  learned_.add(std::as_bytes(learned));
}

std::string DatasetChecksum::text() const { return checksum(ends_.text() + tokens_.text() + learned_.text() + borders_); }

int64_t longest_row(const std::vector<JobData>& data) {
  int64_t longest = 0;
  for (const JobData& job : data) {
    for (const Dataset* dataset : {&job.train, &job.eval}) longest = std::max(longest, lengths_of(*dataset).max);
  }
  return longest;
}

BatchOrder batch_order(const JobSpec& job, const Dataset& train) {
  BatchOrder order{train.size(), job.train.batch_size, job.train.seed, job.train.shuffle};
  if (!has_weights(job.data)) return order;
  COTUNE_CHECK(train.source_count() == job.data.train.size());
  for (size_t i = 0; i < job.data.train.size(); ++i) {
    const int64_t count = train.source_size(i);
    order.shares.push_back({count, count > 0 ? job.data.train[i].weight : 0});
  }
  return order;
}

std::string content_hash(const JobData& data) {
  return checksum(data.train.content_hash() + data.eval.content_hash());
}

std::map<std::string, std::string> file_hashes(const JobData& data) {
  std::map<std::string, std::string> hashes;
  std::set<std::string> unknown;
  for (const Dataset* part : {&data.train, &data.eval}) {
    for (size_t i = 0; i < part->source_count(); ++i) {
      const std::string hash = part->source_hash(i);
      if (hash.empty()) unknown.insert(part->source_name(i));
      hashes[part->source_name(i)] += hash;
    }
  }
  for (const std::string& name : unknown) hashes.erase(name);
  for (auto& [name, hash] : hashes) hash = checksum(hash);
  return hashes;
}

LengthReport lengths_of(const Dataset& dataset) {
  LengthReport report;
  report.examples = dataset.size();
  report.tokens = dataset.token_count();
  report.learned = dataset.learned_count();
  if (dataset.empty()) return report;
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < dataset.size(); ++i) lengths.push_back(dataset.length(i));
  dataset.drop_pages();
  std::sort(lengths.begin(), lengths.end());
  const auto rank = [&](int64_t percent) {
    return lengths[static_cast<size_t>((percent * dataset.size() + 99) / 100 - 1)];
  };
  report.min = lengths.front();
  report.median = rank(50);
  report.p95 = rank(95);
  report.max = lengths.back();
  return report;
}

std::string LengthReport::to_string() const {
  return fmt::format("{}, {}, {} learned; length min {}, median {}, p95 {}, max {}", counted(examples, "example"), counted(tokens, "token"),
                     learned, min, median, p95, max);
}

std::string FileReport::to_string() const {
  std::string text = fmt::format("{}: {}", file, counted(records, "record"));
  const auto add = [&](int64_t count, std::string_view what) {
    if (count > 0) text += fmt::format(", {} {}", count, what);
  };
  add(malformed, "malformed");
  add(too_long, "too long");
  add(repaired, "with bytes that are not UTF-8, or halves of surrogate pairs (replaced by U+FFFD)");
  add(padded, "without their padding");
  add(truncated, "truncated");
  add(dropped_long, "dropped because too long");
  add(dropped_unlearned, "dropped because nothing is left to learn");
  return text;
}

std::vector<std::string> FileReport::warnings() const {
  std::vector<std::string> lines;
  const auto add = [&](int64_t count, std::string_view who, std::string_view what, std::string_view remedy) {
    if (count == 0) return;
    lines.push_back(fmt::format("{}: {} leaves out the {} of {} of its {}, which are trained without ({})", file, who, what, count,
                                counted(records, "record"), remedy));
  };
  constexpr std::string_view other_template = "data.chat_template takes another template", chats = "records of messages hold it";
  add(without_tool_calls, "the chat template", "tool calls", other_template);
  add(without_tools, "the chat template", "tools", other_template);
  const std::string_view prompt = format == DataFormat::alpaca ? "Alpaca's prompt" : "a prompt that is a text";
  add(without_system, prompt, "system text", chats);
  add(without_history, prompt, "history", chats);
  add(without_context, prompt, "context", "under the name `input` it is read");
  if (with_special_texts > 0) {
    lines.push_back(fmt::format("{}: {} of {} hold texts of special tokens, such as `{}`, which are plain characters here: "
                                "`data.special_tokens: parsed` (evaluate: `--special-tokens parsed`) reads them as tokens",
                                file, with_special_texts, counted(records, "record"), special_text));
  }
  return lines;
}

bool truncate_example(Example& example, int64_t max_length, Truncation truncation) {
  const auto length = static_cast<int64_t>(example.tokens.size());
  if (max_length <= 0 || length <= max_length) return true;
  switch (truncation) {
    case Truncation::right:
      example.tokens.resize(static_cast<size_t>(max_length));
      example.learned.resize(static_cast<size_t>(max_length));
      return true;
    case Truncation::left:
      example.tokens.erase(example.tokens.begin(), example.tokens.end() - max_length);
      example.learned.erase(example.learned.begin(), example.learned.end() - max_length);
      example.learned[0] = 0;
      return true;
    case Truncation::drop:
      return false;
    case Truncation::error:
      break;
  }
  throw ExampleTooLong(fmt::format("{}, more than max_length {}; shorten it, or set truncation to right, left or drop",
                                   counted(length, "token"), max_length));
}

}  // namespace cotune
