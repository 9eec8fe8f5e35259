#include "data/records/data_file.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "base/error.h"
#include "data/records/compressed_stream.h"
#include "data/records/foreign_file.h"
#include "data/records/jsonl.h"
#include "data/records/parquet_rows.h"

namespace cotune {
namespace {

bool is_parquet(std::istream& stream) {
  std::array<char, 4> bytes{};
  stream.read(bytes.data(), bytes.size());
  const bool found = stream.gcount() == 4 && std::string_view(bytes.data(), bytes.size()) == "PAR1";
  stream.clear();
  stream.seekg(0);
  return found;
}

bool is_table_of_text(std::filesystem::path path) {
  if (path.extension() == ".gz" || path.extension() == ".zst") path = path.stem();
  return path.extension() == ".csv" || path.extension() == ".tsv";
}

}  // namespace

DataFile::DataFile(const std::filesystem::path& path, const std::vector<std::string>& fields) {
  std::error_code unknown;
  if (std::filesystem::exists(path, unknown) && !std::filesystem::is_regular_file(path, unknown)) {
    throw_user_error("is not a regular file");
  }
  stream_.open(path, std::ios::binary);
  if (!stream_ || (stream_.peek(), stream_.bad())) throw_user_error("cannot open: {}", std::strerror(errno));
  stream_.clear();
  bytes_ = std::filesystem::file_size(path, unknown);
  if (is_parquet(stream_)) {
    lines_ = open_parquet(path, fields);
    return;
  }
  if (const std::string complaint = foreign_file_complaint(stream_); !complaint.empty()) throw_user_error("{}", complaint);
  const Compression compression = compression_of(stream_);
  if (compression != Compression::none) content_ = decompress(stream_, compression);
  std::istream& content = content_ ? *content_ : stream_;
  if (is_table_of_text(path) && content.peek() != '{') {
    throw_user_error("is a table of separated values; accepted are JSONL, plain or compressed by gzip or zstd, and Parquet: write its rows as one "
                     "of them (pandas.read_csv(FILE).to_json(OUT, orient=\"records\", lines=True))");
  }
  lines_ = std::make_unique<JsonlReader>(content);
}

double DataFile::part_read() {
  const double of_rows = lines_->part_read();
  if (of_rows >= 0 || bytes_ == 0) return of_rows;
  const std::streamoff at = stream_.rdbuf()->pubseekoff(0, std::ios::cur, std::ios::in);  // also at the end, where tellg() fails
  return at < 0 ? 1 : std::min(1.0, static_cast<double>(at) / static_cast<double>(bytes_));
}

}  // namespace cotune
