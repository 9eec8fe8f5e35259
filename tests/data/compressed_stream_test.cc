#include "data/records/compressed_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>
#include <zstd.h>

#include <sstream>

#include "base/error.h"
#include "base/random.h"

namespace cotune {
namespace {

using ::testing::HasSubstr;

std::string gzip(const std::string& text) {
  z_stream state{};
  EXPECT_EQ(deflateInit2(&state, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(deflateBound(&state, text.size()) + 64, '\0');
  state.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  state.avail_in = static_cast<uInt>(text.size());
  state.next_out = reinterpret_cast<Bytef*>(out.data());
  state.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&state, Z_FINISH), Z_STREAM_END);
  out.resize(state.total_out);
  deflateEnd(&state);
  return out;
}

std::string zstd(const std::string& text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
  return out;
}

std::string expanded(const std::string& bytes, ExpansionLimit limit = {}) {
  std::istringstream source(bytes);
  const Compression compression = compression_of(source);
  if (compression == Compression::none) return bytes;
  const auto stream = decompress(source, compression, limit);
  std::string text;
  char buffer[1000];
  while (stream->read(buffer, sizeof buffer), stream->gcount() > 0) text.append(buffer, static_cast<size_t>(stream->gcount()));
  return text;
}

std::string error_of(const std::string& bytes, ExpansionLimit limit = {}) {
  try {
    expanded(bytes, limit);
  } catch (const UserError& error) {
    return error.what();
  }
  return "none";
}

/// Text that compresses to about half.
std::string some_text(size_t size) {
  std::string text;
  for (uint64_t i = 0; text.size() < size; ++i) text += std::to_string(mix64(i)) + (i % 7 == 0 ? "\n" : " ");
  return text;
}

TEST(CompressedStream, GivesWhatWasCompressed) {
  for (const size_t size : {0u, 1u, 65'536u, 300'000u}) {
    const std::string text = some_text(size);
    EXPECT_EQ(expanded(gzip(text)), text);
    EXPECT_EQ(expanded(zstd(text)), text);
  }
  EXPECT_EQ(expanded("{\"text\": 1}\n"), "{\"text\": 1}\n");
  EXPECT_EQ(expanded(""), "");
}

TEST(CompressedStream, ReadsSeveralMembersAndPadding) {
  EXPECT_EQ(expanded(gzip("a\n") + gzip("") + gzip("b\n") + std::string(100, '\0')), "a\nb\n");
  EXPECT_EQ(expanded(zstd("a\n") + zstd("") + zstd("b\n")), "a\nb\n");
  const std::string skippable("\x50\x2a\x4d\x18\x02\x00\x00\x00zz", 10);
  EXPECT_EQ(expanded(skippable + zstd("a\n")), "a\n");
}

TEST(CompressedStream, SaysThatDataEndEarly) {
  const std::string text = some_text(200'000);
  EXPECT_THAT(error_of(gzip(text).substr(0, 60'000)), HasSubstr("the gzip data end early, after "));
  EXPECT_THAT(error_of(zstd(text).substr(0, 60'000)), HasSubstr("the zstd data end early, after "));
  for (size_t kept = 2; kept < gzip("abc").size(); ++kept) EXPECT_NE(error_of(gzip("abc").substr(0, kept)), "none") << kept;
  for (size_t kept = 4; kept < zstd("abc").size(); ++kept) EXPECT_NE(error_of(zstd("abc").substr(0, kept)), "none") << kept;
}

TEST(CompressedStream, SaysThatDataAreDamaged) {
  std::string bytes = gzip(some_text(1000));
  bytes[300] = static_cast<char>(~bytes[300]);
  EXPECT_THAT(error_of(bytes), HasSubstr("damaged gzip data"));
  EXPECT_THAT(error_of(gzip("a") + "rest"), HasSubstr("damaged gzip data: incorrect header check"));
  EXPECT_THAT(error_of(zstd("a") + "rest"), HasSubstr("damaged zstd data"));
}

TEST(CompressedStream, RefusesBombs) {
  const std::string zeros(5'000'000, '\n');
  EXPECT_EQ(error_of(gzip(zeros)), "none");
  EXPECT_THAT(error_of(gzip(zeros), {1'000'000, 200}), HasSubstr("expand to more than 200 times their size"));
  EXPECT_THAT(error_of(zstd(zeros), {1'000'000, 200}), HasSubstr("refused as a decompression bomb"));
  EXPECT_EQ(error_of(gzip(some_text(2'000'000)), {1'000'000, 200}), "none");
}

TEST(CompressedStream, RefusesWindowsLargerThanItWillHold) {
  ZSTD_CCtx* context = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(context, ZSTD_c_windowLog, 28);
  ZSTD_CCtx_setParameter(context, ZSTD_c_contentSizeFlag, 0);
  const std::string text(1000, 'x');
  std::string out(1000, '\0');
  ZSTD_inBuffer in{text.data(), text.size(), 0};
  ZSTD_outBuffer target{out.data(), out.size(), 0};
  ZSTD_compressStream2(context, &target, &in, ZSTD_e_flush);
  ZSTD_compressStream2(context, &target, &in, ZSTD_e_end);
  ZSTD_freeCCtx(context);
  EXPECT_THAT(error_of(out.substr(0, target.pos)), HasSubstr("windows of up to 128 MiB are accepted: compress without --long"));
}

}  // namespace
}  // namespace cotune
