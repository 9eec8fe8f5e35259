#include <algorithm>

#include "base/error.h"
#include "data/dataset_facts.h"
#include "data/dataset_file.h"

namespace cotune {
namespace {

constexpr size_t most_words_in_memory = size_t{1} << 18;

std::string_view text_of(std::span<const std::byte> bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

std::array<char, 32> characters(const std::string& hash) {
  std::array<char, 32> result{};
  COTUNE_CHECK(hash.size() == result.size());
  std::copy(hash.begin(), hash.end(), result.begin());
  return result;
}

}  // namespace

struct DatasetFileWriter::Part {
  explicit Part(const std::filesystem::path& folder) : entries(folder) {}
  SpooledEntries entries;
  DatasetChecksum content, source_content;
  std::vector<int64_t> sources;
  std::vector<std::string> source_hashes;
  DatasetTotals totals;

  void end_source() {
    if (source_hashes.size() < sources.size()) source_hashes.push_back(source_content.text());
    source_content = {};
  }
};

DatasetFileWriter::DatasetFileWriter(const std::filesystem::path& path, uint32_t mode) : file_(path, mode) {
  for (auto& part : parts_) part = std::make_unique<Part>(path.parent_path());
  file_.append(std::string(dataset_header_bytes, '\0'));
}

DatasetFileWriter::~DatasetFileWriter() = default;

void DatasetFileWriter::begin_source(DataPart part, const std::string&) {
  Part& own = *parts_[static_cast<size_t>(part)];
  own.end_source();
  own.sources.push_back(static_cast<int64_t>(own.entries.size()));
  own.content.begin_source();
  own.source_content.begin_source();
}

void DatasetFileWriter::add(DataPart part, const Example& example) {
  Part& own = *parts_[static_cast<size_t>(part)];
  own.entries.add({word_count_ + words_.size(), static_cast<uint32_t>(example.tokens.size()), example.line});
  own.content.add(example.tokens, example.learned);
  own.source_content.add(example.tokens, example.learned);
  own.totals.tokens += std::ssize(example.tokens);
  own.totals.learned += std::count(example.learned.begin(), example.learned.end(), uint8_t{1});
  for (const int32_t token : example.tokens) own.totals.largest_token = std::max(own.totals.largest_token, token);
  append_words(example, words_);
  if (words_.size() >= most_words_in_memory) write_words();
}

void DatasetFileWriter::append(std::span<const std::byte> bytes, RunningChecksum& sum) {
  sum.add(bytes);
  file_.append(text_of(bytes));
}

void DatasetFileWriter::write_words() {
  append(std::as_bytes(std::span(words_)), words_checksum_);
  word_count_ += words_.size();
  words_.clear();
}

void DatasetFileWriter::finish(const std::string& key, const std::vector<FileReport>& reports,
                               const std::vector<std::string>& original_paths) {
  write_words();
  DatasetFileHeader header;
  header.word_count = word_count_;
  const uint64_t words_end = dataset_header_bytes + word_count_ * sizeof(int32_t);
  header.entries_begin = (words_end + sizeof(ExampleEntry) - 1) / sizeof(ExampleEntry) * sizeof(ExampleEntry);
  file_.append(std::string(header.entries_begin - words_end, '\0'));
  RunningChecksum entries_checksum, facts_checksum;
  header.facts_begin = header.entries_begin;
  DatasetFacts facts{.reports = reports, .sources = {}, .source_hashes = {}, .original_paths = original_paths};
  for (size_t i = 0; i < parts_.size(); ++i) {
    Part& part = *parts_[i];
    part.entries.for_each_part([&](std::span<const ExampleEntry> entries) { append(std::as_bytes(entries), entries_checksum); });
    header.facts_begin += part.entries.size() * sizeof(ExampleEntry);
    header.parts[i] = {.examples = part.entries.size(),
                       .tokens = static_cast<uint64_t>(part.totals.tokens),
                       .learned = static_cast<uint64_t>(part.totals.learned),
                       .largest_token = part.totals.largest_token,
                       .content_hash = characters(part.content.text())};
    part.end_source();
    facts.sources[i] = part.sources;
    facts.source_hashes[i] = part.source_hashes;
  }
  const std::string text = to_json(facts);
  append(std::as_bytes(std::span(text)), facts_checksum);
  header.facts_bytes = text.size();
  header.words_checksum = words_checksum_.value();
  header.entries_checksum = entries_checksum.value();
  header.facts_checksum = facts_checksum.value();
  header.key = characters(key);
  header.header_checksum = checksum_of(header);
  file_.overwrite(0, text_of(std::as_bytes(std::span(&header, 1))));
}

}  // namespace cotune
