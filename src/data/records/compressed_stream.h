/// Files that may be compressed, read as what they hold.
#pragma once

#include <cstdint>
#include <filesystem>
#include <istream>
#include <memory>

namespace cotune {

enum class Compression { none, gzip, zstd };

/// What the first bytes of a stream say; its position stays.
Compression compression_of(std::istream& stream);

/// How far data may expand before they are taken for a bomb: more than `ratio` times, once `free_bytes` have come out.
struct ExpansionLimit {
  uint64_t free_bytes = uint64_t{1} << 30;
  uint64_t ratio = 200;
};

/// Decompresses `source` as it is read, in constant memory: several gzip members or zstd frames one after the other, windows of up
/// to 128 MiB. Reading throws UserError (`badbit` is among the stream's exceptions) where the data are damaged, end early, or
/// expand beyond the limit; its text names no file. `source` must outlive the stream.
std::unique_ptr<std::istream> decompress(std::istream& source, Compression compression, ExpansionLimit limit = {});

}  // namespace cotune
