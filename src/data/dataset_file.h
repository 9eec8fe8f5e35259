/// Tokenized data on disk: what a job trains on and holds out, ready to be mapped.
///
/// Little endian, in this order:
///   header    DatasetFileHeader, filled up to dataset_header_bytes
///   words     of every example, in the order in which they were read: its tokens as int32, a byte per token (1: learned), zeros up
///             to a multiple of 4 bytes (ExampleEntry in dataset.h)
///   entries   filled up to a multiple of 16 bytes before them: an ExampleEntry per example of train, then of eval
///   facts     JSON: what became of the records of each file (FileReport without its name), where the examples of each file begin in
///             train and in eval and their checksums, and the absolute paths of the files when they were read, for people
/// The names of files are no part of what the data are: they are those that the job gives when the file is opened.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/atomic_file.h"
#include "base/running_checksum.h"
#include "data/dataset.h"
#include "data/dataset_reader.h"
#include "data/spooled_entries.h"

namespace cotune {

inline constexpr std::array<char, 8> dataset_magic = {'c', 'o', 't', 'u', 'n', 'e', 'D', 'S'};
/// Of the layout above.
inline constexpr uint32_t dataset_file_version = 1;
inline constexpr uint64_t dataset_header_bytes = 4096;

struct DatasetFileHeader {
  struct Part {
    uint64_t examples = 0, tokens = 0, learned = 0;
    int64_t largest_token = -1;
    std::array<char, 32> content_hash{};  ///< Dataset::content_hash
  };
  std::array<char, 8> magic = dataset_magic;
  uint32_t version = dataset_file_version;
  uint32_t reserved = 0;
  uint64_t word_count = 0;     ///< from byte dataset_header_bytes on
  uint64_t entries_begin = 0;  ///< byte
  uint64_t facts_begin = 0, facts_bytes = 0;
  std::array<Part, 2> parts;   ///< train, eval
  std::array<uint64_t, 2> words_checksum{}, entries_checksum{}, facts_checksum{};  ///< RunningChecksum::value
  std::array<char, 32> key{};  ///< what the data were made of (dataset_cache.h)
  uint64_t header_checksum = 0;  ///< XXH3-64 of the bytes before it
};

/// What its header_checksum should be.
uint64_t checksum_of(const DatasetFileHeader& header);

/// What of a file is compared with its checksums. Sizes and places are looked at in any case: no file makes a read beyond its end.
enum class DatasetCheck {
  places,  ///< nothing
  quick,   ///< all but the words where they are more than most_checked_bytes: then the sizes and the header stand for them
  all,
};
inline constexpr uint64_t most_checked_bytes = uint64_t{1} << 30;

/// A file of tokenized data, mapped. Immutable; may be used by several threads.
class DatasetFile : public std::enable_shared_from_this<DatasetFile> {
 public:
  /// Throws UserError naming the file where it cannot be opened, or is no such file, or damaged.
  explicit DatasetFile(const std::filesystem::path& path, DatasetCheck check = DatasetCheck::quick);
  explicit DatasetFile(std::shared_ptr<const MappedFile> file, DatasetCheck check = DatasetCheck::quick);

  /// What `bytes`, aligned to 16, hold, as that constructor reads a file. They must outlive what is made of them.
  static DatasetFile of_bytes(std::span<const std::byte> bytes, DatasetCheck check);

  /// Its data, with the names of the job's files: one for each that was read. They keep the file mapped, and this object alive where a
  /// shared_ptr holds it.
  JobData data(const std::vector<std::string>& file_names) const;

  size_t file_count() const { return reports_.size(); }
  const std::vector<std::string>& original_paths() const { return original_paths_; }
  std::string key() const;
  const DatasetFileHeader& header() const { return header_; }
  int64_t bytes() const { return static_cast<int64_t>(bytes_.size()); }

 private:
  DatasetFile() = default;
  void parse(DatasetCheck check);
  void parse_facts();
  Dataset part(size_t index, const std::vector<std::string>& names) const;

  std::shared_ptr<const MappedFile> file_;
  std::span<const std::byte> bytes_;
  DatasetFileHeader header_;
  std::span<const int32_t> words_;
  std::array<std::span<const ExampleEntry>, 2> entries_;
  std::vector<FileReport> reports_;
  std::array<std::vector<int64_t>, 2> sources_;  ///< where each begins
  std::array<std::vector<std::string>, 2> source_hashes_;
  std::vector<std::string> original_paths_;
};

/// Writes one as its examples come; needs a few MiB of memory, whatever the size.
class DatasetFileWriter : public ExampleSink {
 public:
  /// mode: of the file. Throws SystemError where the disk refuses; so do the other calls.
  DatasetFileWriter(const std::filesystem::path& path, uint32_t mode);
  ~DatasetFileWriter() override;

  void begin_source(DataPart part, const std::string& file) override;
  void add(DataPart part, const Example& example) override;
  /// Writes the rest. The file is then whole, under a temporary name until commit(); without commit() it goes with the writer.
  void finish(const std::string& key, const std::vector<FileReport>& reports, const std::vector<std::string>& original_paths);
  void commit() { file_.commit(); }
  const std::filesystem::path& temporary() const { return file_.temporary(); }

 private:
  struct Part;

  void write_words();
  void append(std::span<const std::byte> bytes, RunningChecksum& sum);

  AtomicFile file_;
  std::vector<int32_t> words_;  ///< not written yet
  uint64_t word_count_ = 0;
  RunningChecksum words_checksum_;
  std::array<std::unique_ptr<Part>, 2> parts_;
};

}  // namespace cotune
