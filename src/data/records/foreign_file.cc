#include "data/records/foreign_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

namespace cotune {
namespace {

using namespace std::string_view_literals;

constexpr std::string_view compress_again = "decompress it, or compress it by gzip or zstd in place of that";
constexpr std::string_view unpack = "unpack it, and name the files in it";
constexpr std::string_view write_anew = "write its rows as Parquet (pyarrow.parquet.write_table) or JSONL";

struct Kind {
  std::string_view magic;
  size_t offset = 0;
  std::string_view name, advice;
};

constexpr std::array kinds = {
    Kind{"\xfd" "7zXZ\0"sv, 0, "is compressed by xz", compress_again},
    Kind{"\x04\x22\x4d\x18"sv, 0, "is compressed by lz4", compress_again},
    Kind{"\x02\x21\x4c\x18"sv, 0, "is compressed by lz4", compress_again},
    Kind{"\xff\x06\0\0sNaPpY"sv, 0, "is compressed by snappy", compress_again},
    Kind{"\x1f\x9d"sv, 0, "is compressed by compress (.Z)", compress_again},
    Kind{"LZIP\x01"sv, 0, "is compressed by lzip", compress_again},
    Kind{"PK\x03\x04"sv, 0, "is a zip archive", unpack},
    Kind{"PK\x05\x06"sv, 0, "is an empty zip archive", unpack},
    Kind{"7z\xbc\xaf\x27\x1c"sv, 0, "is a 7z archive", unpack},
    Kind{"Rar!\x1a\x07"sv, 0, "is a RAR archive", unpack},
    Kind{"ustar"sv, 257, "is a tar archive", unpack},
    Kind{"ARROW1\0\0"sv, 0, "is an Arrow IPC file (Feather)", write_anew},
    Kind{"FEA1"sv, 0, "is a Feather file, version 1", write_anew},
    Kind{"\xff\xff\xff\xff"sv, 0, "is a stream of Arrow IPC, as the cache of `datasets` holds", write_anew},
    Kind{"PARE"sv, 0, "is an encrypted Parquet file", write_anew},
    Kind{"Obj\x01"sv, 0, "is an Avro file", write_anew},
    Kind{"\x89HDF\r\n\x1a\n"sv, 0, "is an HDF5 file", write_anew},
    Kind{"SQLite format 3\0"sv, 0, "is an SQLite database", write_anew},
    Kind{"GGUF"sv, 0, "is a GGUF model", "a model is named by `model.path`"},
    Kind{"\xff\xfe"sv, 0, "is text in UTF-16", "write it as UTF-8"},
    Kind{"\xfe\xff"sv, 0, "is text in UTF-16", "write it as UTF-8"},
};

std::string bytes_at(std::istream& stream, std::streamoff offset, std::ios::seekdir from, size_t count) {
  std::string bytes(count, '\0');
  stream.seekg(offset, from);
  stream.read(bytes.data(), static_cast<std::streamsize>(count));
  bytes.resize(static_cast<size_t>(std::max<std::streamsize>(0, stream.gcount())));
  stream.clear();
  return bytes;
}

/// A block or the end of a file follows the header of bzip2, which alone might be text.
bool is_bzip2(std::string_view head) {
  return head.size() >= 10 && head.starts_with("BZh") && head[3] >= '1' && head[3] <= '9' &&
         (head.substr(4, 6) == "1AY&SY" || head.substr(4, 6) == "\x17\x72\x45\x38\x50\x90"sv);
}

/// The word stands at the beginning and at the end, before a byte that says how long the last part is: longer than a newline could say.
bool is_orc(std::string_view head, std::string_view tail) {
  return head.starts_with("ORC") && tail.starts_with("ORC") && static_cast<unsigned char>(tail.back()) > '\n' && tail.size() == 4;
}

}  // namespace

std::string foreign_file_complaint(std::istream& stream) {
  constexpr size_t head_bytes = 512;
  const auto begin = stream.tellg();
  const std::string head = bytes_at(stream, begin, std::ios::beg, head_bytes), tail = bytes_at(stream, -4, std::ios::end, 4);
  stream.seekg(begin);
  const auto found = std::find_if(kinds.begin(), kinds.end(), [&](const Kind& kind) {
    return head.size() >= kind.offset && std::string_view(head).substr(kind.offset).starts_with(kind.magic);
  });
  Kind kind = found != kinds.end() ? *found : Kind{};
  if (is_bzip2(head)) kind = {"", 0, "is compressed by bzip2", compress_again};
  if (is_orc(head, tail)) kind = {"", 0, "is an ORC file", write_anew};
  if (kind.name.empty()) return "";
  return fmt::format("{}; accepted are JSONL, plain or compressed by gzip or zstd, and Parquet: {}", kind.name, kind.advice);
}

}  // namespace cotune
