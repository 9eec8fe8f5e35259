#include "data/records/compressed_stream.h"

#include <fmt/format.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <array>
#include <span>
#include <streambuf>
#include <vector>

#include "base/error.h"

namespace cotune {
namespace {

constexpr size_t block_bytes = size_t{1} << 16;

/// One kind of compressed data. expand() moves `in` behind what it has read and returns how much it wrote.
class Expander {
 public:
  virtual ~Expander() = default;
  virtual size_t expand(std::span<const char>& in, std::span<char> out) = 0;
  /// Whether everything that was begun has ended.
  virtual bool is_complete() const = 0;
  virtual const char* name() const = 0;
};

class GzipExpander : public Expander {
 public:
  GzipExpander() { COTUNE_CHECK(inflateInit2(&state_, 15 + 16) == Z_OK); }
  ~GzipExpander() override { inflateEnd(&state_); }
  GzipExpander(const GzipExpander&) = delete;
  GzipExpander& operator=(const GzipExpander&) = delete;

  size_t expand(std::span<const char>& in, std::span<char> out) override {
    if (complete_) {
      while (!in.empty() && in.front() == '\0') in = in.subspan(1);  // padding of tapes and block devices
      if (in.empty()) return 0;
      COTUNE_CHECK(inflateReset(&state_) == Z_OK);
      complete_ = false;
    }
    state_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(in.data()));
    state_.avail_in = static_cast<uInt>(in.size());
    state_.next_out = reinterpret_cast<Bytef*>(out.data());
    state_.avail_out = static_cast<uInt>(out.size());
    const int result = inflate(&state_, Z_NO_FLUSH);
    if (result != Z_OK && result != Z_STREAM_END && result != Z_BUF_ERROR) {
      throw_user_error("damaged gzip data: {}", state_.msg == nullptr ? zError(result) : state_.msg);
    }
    in = in.subspan(in.size() - state_.avail_in);
    complete_ = result == Z_STREAM_END;
    return out.size() - state_.avail_out;
  }
  bool is_complete() const override { return complete_; }
  const char* name() const override { return "gzip"; }

 private:
  z_stream state_{};
  bool complete_ = false;
};

class ZstdExpander : public Expander {
 public:
  ZstdExpander() : state_(ZSTD_createDStream()) { COTUNE_CHECK(state_ != nullptr); }
  ~ZstdExpander() override { ZSTD_freeDStream(state_); }
  ZstdExpander(const ZstdExpander&) = delete;
  ZstdExpander& operator=(const ZstdExpander&) = delete;

  size_t expand(std::span<const char>& in, std::span<char> out) override {
    if (in.empty() && complete_) return 0;  // else it would wait for another frame
    ZSTD_inBuffer source{in.data(), in.size(), 0};
    ZSTD_outBuffer target{out.data(), out.size(), 0};
    const size_t result = ZSTD_decompressStream(state_, &target, &source);
    if (ZSTD_isError(result) != 0U) {
      const std::string reason = ZSTD_getErrorName(result);
      const bool window = reason.find("too much memory") != std::string::npos;
      throw_user_error("{}zstd data: {}{}", window ? "" : "damaged ", reason,
                       window ? "; windows of up to 128 MiB are accepted: compress without --long" : "");
    }
    in = in.subspan(source.pos);
    complete_ = result == 0;
    return target.pos;
  }
  bool is_complete() const override { return complete_; }
  const char* name() const override { return "zstd"; }

 private:
  ZSTD_DStream* state_;
  bool complete_ = false;
};

class ExpandingBuffer : public std::streambuf {
 public:
  ExpandingBuffer(std::istream& source, std::unique_ptr<Expander> expander, ExpansionLimit limit)
      : source_(source), expander_(std::move(expander)), limit_(limit), in_(block_bytes), out_(block_bytes) {}

 protected:
  int_type underflow() override {
    size_t written = 0;
    while (written == 0) {
      if (left_.empty() && !at_end_) read_source();
      const size_t before = left_.size();
      written = expander_->expand(left_, out_);
      if (written > 0 || left_.size() < before) continue;
      if (at_end_ && left_.empty()) {
        if (!expander_->is_complete()) {
          throw_user_error("the {} data end early, after {} bytes of content: the file was cut off", expander_->name(), out_bytes_);
        }
        return traits_type::eof();
      }
    }
    out_bytes_ += written;
    if (out_bytes_ > limit_.free_bytes && out_bytes_ / limit_.ratio > in_bytes_) {
      throw_user_error("the {} data expand to more than {} times their size ({} bytes give more than {}): refused as a decompression "
                       "bomb; a file that is meant so can be given unpacked",
                       expander_->name(), limit_.ratio, in_bytes_, out_bytes_);
    }
    setg(out_.data(), out_.data(), out_.data() + written);
    return traits_type::to_int_type(out_.front());
  }

 private:
  void read_source() {
    source_.read(in_.data(), static_cast<std::streamsize>(in_.size()));
    const auto count = static_cast<size_t>(source_.gcount());
    if (source_.bad()) throw_user_error("cannot read the file to its end");
    in_bytes_ += count;
    left_ = std::span<const char>(in_).first(count);
    at_end_ = count == 0;
  }

  std::istream& source_;
  std::unique_ptr<Expander> expander_;
  ExpansionLimit limit_;
  std::vector<char> in_, out_;
  std::span<const char> left_;
  uint64_t in_bytes_ = 0, out_bytes_ = 0;
  bool at_end_ = false;
};

class ExpandingStream : public std::istream {
 public:
  ExpandingStream(std::istream& source, std::unique_ptr<Expander> expander, ExpansionLimit limit)
      : std::istream(nullptr), buffer_(source, std::move(expander), limit) {
    rdbuf(&buffer_);
    exceptions(std::ios::badbit);
  }

 private:
  ExpandingBuffer buffer_;
};

}  // namespace

Compression compression_of(std::istream& stream) {
  std::array<char, 4> bytes{};
  const auto begin = stream.tellg();
  stream.read(bytes.data(), bytes.size());
  const auto count = stream.gcount();
  stream.clear();
  stream.seekg(begin);
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(bytes.at(i)); };
  if (count >= 2 && byte(0) == 0x1f && byte(1) == 0x8b) return Compression::gzip;
  const bool is_frame = byte(0) == 0x28 && byte(1) == 0xb5 && byte(2) == 0x2f && byte(3) == 0xfd;
  const bool is_skippable = (byte(0) & 0xf0) == 0x50 && byte(1) == 0x2a && byte(2) == 0x4d && byte(3) == 0x18;
  return count == 4 && (is_frame || is_skippable) ? Compression::zstd : Compression::none;
}

std::unique_ptr<std::istream> decompress(std::istream& source, Compression compression, ExpansionLimit limit) {
  COTUNE_CHECK(compression != Compression::none);
  std::unique_ptr<Expander> expander;
  if (compression == Compression::gzip) {
    expander = std::make_unique<GzipExpander>();
  } else {
    expander = std::make_unique<ZstdExpander>();
  }
  return std::make_unique<ExpandingStream>(source, std::move(expander), limit);
}

}  // namespace cotune
