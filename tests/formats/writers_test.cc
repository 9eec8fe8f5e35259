#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

#include "base/error.h"
#include "formats/gguf_writer.h"
#include "formats/safetensors_bytes.h"
#include "formats/temporary_folder.h"

namespace cotune {
namespace {

std::span<const std::byte> bytes_of(const auto& values) { return std::as_bytes(std::span(values)); }

TEST(SafetensorsWriter, WritesPieceByPieceWhatIsWrittenAtOnce) {
  const std::vector<float> a = {1, 2, 3, 4, 5, 6};
  const std::vector<uint16_t> b = {7, 8};
  const std::vector<NamedTensor> tensors = {{"b", {DataType::bf16, {2}, bytes_of(b)}}, {"a", {DataType::f32, {2, 3}, bytes_of(a)}}};
  const TemporaryFolder folder;
  SafetensorsWriter writer(folder.path() / "x.safetensors", {{"b", DataType::bf16, {2}}, {"a", DataType::f32, {2, 3}}}, {{"format", "pt"}});
  EXPECT_EQ(writer.tensors().front().name, "a");
  writer.append(bytes_of(a).first(5));
  writer.append(bytes_of(a).subspan(5));
  writer.append(bytes_of(b));
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "x.safetensors"));
  writer.commit();
  EXPECT_EQ(read_file(folder.path() / "x.safetensors"), safetensors_bytes(tensors, {{"format", "pt"}}));
}

TEST(SafetensorsWriter, LeavesNothingWhereItIsNotCompleted) {
  const TemporaryFolder folder;
  const std::vector<float> a = {1, 2};
  {
    SafetensorsWriter writer(folder.path() / "x", {{"a", DataType::f32, {2}}});
    writer.append(bytes_of(a).first(4));
    EXPECT_THROW(writer.commit(), InternalError);
    EXPECT_THROW(writer.append(bytes_of(a)), InternalError);
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

struct SmallGguf {
  std::vector<std::string> pairs = {gguf_pair_bytes({"general.architecture", "llama"}), gguf_pair_bytes({"n", uint32_t{7}}),
                                    gguf_pair_bytes({"alpha", 16.5f})};
  std::vector<float> a = {1, 2, 3, 4, 5, 6};
  std::vector<uint16_t> b = {0x3c00, 0x4000};
  std::vector<GgufTensorPlan> tensors = {{"b", GgufType::F16, {2}}, {"a", GgufType::F32, {2, 3}}};
};

void expect_bytes(const GgufTensor& read, std::span<const std::byte> bytes) {
  ASSERT_EQ(read.bytes.size(), bytes.size());
  EXPECT_EQ(std::memcmp(read.bytes.data(), bytes.data(), bytes.size()), 0);
}

TEST(GgufWriter, WritesWhatIsReadAgainWhateverThePiecesAndTheAlignment) {
  for (const uint64_t alignment : {uint64_t{32}, uint64_t{64}}) {
    const TemporaryFolder folder;
    SmallGguf small;
    if (alignment != 32) small.pairs.push_back(gguf_pair_bytes({"general.alignment", static_cast<uint32_t>(alignment)}));
    GgufWriter writer(folder.path() / "x.gguf", small.pairs, small.tensors, alignment);
    std::vector<std::byte> bytes(bytes_of(small.b).begin(), bytes_of(small.b).end());
    bytes.insert(bytes.end(), bytes_of(small.a).begin(), bytes_of(small.a).end());
    writer.append(std::span(bytes).first(7));
    writer.append(std::span(bytes).subspan(7));
    EXPECT_FALSE(std::filesystem::exists(folder.path() / "x.gguf"));
    writer.commit();
    const GgufFile file(folder.path() / "x.gguf");
    EXPECT_EQ(file.text("general.architecture"), "llama");
    EXPECT_EQ(file.number("alpha"), 16.5);
    EXPECT_EQ(file.alignment(), alignment);
    EXPECT_EQ(file.find("a")->shape, (std::vector<int64_t>{2, 3}));
    expect_bytes(*file.find("a"), bytes_of(small.a));
    expect_bytes(*file.find("b"), bytes_of(small.b));
  }
}

TEST(GgufWriter, TakesPairsOfAnotherFileAsTheyAre) {
  const TemporaryFolder folder;
  const SmallGguf small;
  GgufWriter(folder.path() / "x.gguf", small.pairs, {}).commit();
  const GgufFile file(folder.path() / "x.gguf");
  std::vector<std::string> pairs;
  for (const GgufStoredPair& pair : file.pairs()) pairs.emplace_back(reinterpret_cast<const char*>(pair.bytes.data()), pair.bytes.size());
  EXPECT_EQ(pairs, small.pairs);
}

TEST(GgufWriter, LeavesNothingWhereItIsNotCompleted) {
  const TemporaryFolder folder;
  const SmallGguf small;
  {
    GgufWriter writer(folder.path() / "x.gguf", small.pairs, small.tensors);
    writer.append(bytes_of(small.b));
    EXPECT_THROW(writer.commit(), InternalError);
    writer.append(bytes_of(small.a));
    EXPECT_THROW(writer.append(bytes_of(small.a)), InternalError);
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

}  // namespace
}  // namespace cotune
