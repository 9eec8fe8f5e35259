#include "data/dataset_file.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "data/dataset_facts.h"

namespace cotune {
namespace {

static_assert(std::endian::native == std::endian::little);
static_assert(sizeof(DatasetFileHeader) <= dataset_header_bytes);

[[noreturn]] void refuse(const std::string& reason) { throw UserError(reason); }

/// file: that the bytes are mapped from, or null. Its pages are let go again as they are read.
void compare(std::span<const std::byte> bytes, const std::array<uint64_t, 2>& expected, const char* what, const MappedFile* file) {
  constexpr size_t piece_bytes = size_t{16} << 20;
  RunningChecksum sum;
  for (size_t at = 0; at < bytes.size(); at += piece_bytes) {
    sum.add(bytes.subspan(at, std::min(piece_bytes, bytes.size() - at)));
    if (file != nullptr) file->drop_pages();
  }
  if (sum.value() != expected) refuse(fmt::format("its {} are damaged: they do not fit their checksum", what));
}

/// Whether [begin, begin + count) is a part of [0, size).
bool fits(uint64_t begin, uint64_t count, uint64_t size) { return begin <= size && count <= size - begin; }

}  // namespace

uint64_t checksum_of(const DatasetFileHeader& header) {
  return XXH3_64bits(&header, offsetof(DatasetFileHeader, header_checksum));
}

DatasetFile::DatasetFile(const std::filesystem::path& path, DatasetCheck check) : DatasetFile(std::make_shared<const MappedFile>(path), check) {}

DatasetFile::DatasetFile(std::shared_ptr<const MappedFile> file, DatasetCheck check) : file_(std::move(file)) {
  bytes_ = file_->bytes();
  try {
    parse(check);
  } catch (const UserError& error) {
    throw_user_error("{}: {}", file_->path().string(), error.what());
  }
  file_->drop_pages();
}

DatasetFile DatasetFile::of_bytes(std::span<const std::byte> bytes, DatasetCheck check) {
  DatasetFile file;
  file.bytes_ = bytes;
  file.parse(check);
  return file;
}

void DatasetFile::parse(DatasetCheck check) {
  const uint64_t size = bytes_.size();
  if (size < dataset_header_bytes) refuse(fmt::format("is no file of tokenized data, or was cut off: it has {} bytes", size));
  std::memcpy(static_cast<void*>(&header_), bytes_.data(), sizeof header_);
  if (header_.magic != dataset_magic) refuse("is no file of tokenized data");
  if (header_.version != dataset_file_version) refuse(fmt::format("has version {}, and {} is read", header_.version, dataset_file_version));
  if (check != DatasetCheck::places && checksum_of(header_) != header_.header_checksum) {
    refuse("its header is damaged: it does not fit its checksum");
  }
  const auto& [train, eval] = header_.parts;
  const uint64_t after_header = size - dataset_header_bytes, most_entries = size / sizeof(ExampleEntry);
  if (header_.word_count > after_header / sizeof(int32_t) || train.examples > most_entries || eval.examples > most_entries ||
      header_.entries_begin % sizeof(ExampleEntry) != 0 ||
      header_.entries_begin < dataset_header_bytes + header_.word_count * sizeof(int32_t) ||
      !fits(header_.entries_begin, (train.examples + eval.examples) * sizeof(ExampleEntry), size) ||
      header_.facts_begin != header_.entries_begin + (train.examples + eval.examples) * sizeof(ExampleEntry) ||
      !fits(header_.facts_begin, header_.facts_bytes, size) || header_.facts_begin + header_.facts_bytes != size) {
    refuse(fmt::format("was cut off, or is damaged: its parts do not fit its {} bytes", size));
  }
  const auto words = bytes_.subspan(dataset_header_bytes, header_.word_count * sizeof(int32_t));
  const auto entries = bytes_.subspan(header_.entries_begin, header_.facts_begin - header_.entries_begin);
  const auto facts = bytes_.subspan(header_.facts_begin);
  if (check != DatasetCheck::places) {
    compare(entries, header_.entries_checksum, "index", file_.get());
    compare(facts, header_.facts_checksum, "facts", file_.get());
    if (check == DatasetCheck::all || words.size() <= most_checked_bytes) compare(words, header_.words_checksum, "tokens", file_.get());
  }
  words_ = {reinterpret_cast<const int32_t*>(words.data()), header_.word_count};
  const auto* first = reinterpret_cast<const ExampleEntry*>(entries.data());
  entries_ = {std::span(first, train.examples), std::span(first + train.examples, eval.examples)};
  for (size_t part = 0; part < entries_.size(); ++part) {
    uint64_t tokens = 0;
    for (const ExampleEntry& entry : entries_[part]) {
      if (!fits(entry.begin, entry.word_count(), header_.word_count)) refuse("is damaged: an example lies beyond its end");
      tokens += entry.length;
    }
    const int64_t largest = header_.parts[part].largest_token;
    if (largest < -1 || largest > std::numeric_limits<int32_t>::max()) refuse(fmt::format("is damaged: there is no token {}", largest));
    if (tokens != header_.parts[part].tokens || header_.parts[part].learned > tokens) refuse("is damaged: its tokens are not as many as it says");
  }
  parse_facts();
}

void DatasetFile::parse_facts() {
  const std::string_view text(reinterpret_cast<const char*>(bytes_.data() + header_.facts_begin), header_.facts_bytes);
  const DatasetFacts facts = facts_of(text);
  for (size_t part = 0; part < facts.sources.size(); ++part) {
    int64_t before = 0;
    for (const int64_t begin : facts.sources[part]) {
      if (begin < before || begin > static_cast<int64_t>(entries_[part].size())) refuse("is damaged: a file's examples lie beyond its end");
      before = begin;
    }
    if (!facts.sources[part].empty() && facts.sources[part].front() != 0) refuse("is damaged: examples of no file");
    if (facts.sources[part].size() > facts.reports.size()) refuse("is damaged: examples of more files than were read");
    const size_t hashes = facts.source_hashes[part].size();
    if (hashes != 0 && hashes != facts.sources[part].size()) refuse("is damaged: checksums of other files than were read");
  }
  reports_ = facts.reports;
  sources_ = facts.sources;
  source_hashes_ = facts.source_hashes;
  original_paths_ = facts.original_paths;
}

std::string DatasetFile::key() const { return {header_.key.begin(), header_.key.end()}; }

Dataset DatasetFile::part(size_t index, const std::vector<std::string>& names) const {
  std::vector<Dataset::Source> sources;
  for (size_t i = 0; i < sources_[index].size(); ++i) {
    // A file of held-out examples stands behind the train files, and is the only one of its part.
    const bool is_own_file = index == 1 && sources_[1].size() == 1 && sources_[0].size() + 1 == reports_.size();
    const std::string hash = source_hashes_[index].empty() ? "" : source_hashes_[index][i];
    sources.push_back({is_own_file ? names.back() : names[i], sources_[index][i], hash});
  }
  const DatasetFileHeader::Part& part = header_.parts[index];
  DatasetTotals totals{.tokens = static_cast<int64_t>(part.tokens),
                       .learned = static_cast<int64_t>(part.learned),
                       .largest_token = static_cast<int32_t>(part.largest_token),
                       .content_hash = {part.content_hash.begin(), part.content_hash.end()}};
  const std::shared_ptr<const DatasetFile> self = weak_from_this().lock();
  std::shared_ptr<const MappedFile> file = self != nullptr ? std::shared_ptr<const MappedFile>(self, file_.get()) : file_;
  return {MappedExamples{std::move(file), words_, entries_[index], std::move(totals)}, std::move(sources)};
}

JobData DatasetFile::data(const std::vector<std::string>& file_names) const {
  COTUNE_CHECK(file_names.size() == reports_.size());
  JobData data;
  data.train = part(0, file_names);
  data.eval = part(1, file_names);
  data.files = reports_;
  for (size_t i = 0; i < file_names.size(); ++i) data.files[i].file = file_names[i];
  if (file_ != nullptr) data.cache_file = file_->path().string();
  return data;
}

}  // namespace cotune
