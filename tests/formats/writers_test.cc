#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

#include "base/error.h"
#include "formats/gguf_writer.h"
#include "formats/safetensors.h"
#include "formats/safetensors_writer.h"
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

TEST(GgufBytes, AreReadAgain) {
  const std::vector<float> a = {1, 2, 3, 4, 5, 6};
  const std::vector<uint16_t> b = {0x3c00, 0x4000};
  const std::vector<GgufPair> pairs = {{"general.architecture", "llama"}, {"n", uint32_t{7}}, {"alpha", 16.5f}};
  const std::vector<GgufTensor> tensors = {{"b", GgufType::F16, {2}, bytes_of(b)}, {"a", GgufType::F32, {2, 3}, bytes_of(a)}};
  const std::string file = gguf_bytes(pairs, tensors);
  const GgufContent content = parse_gguf(std::as_bytes(std::span(file)), "x");
  EXPECT_EQ(std::get<std::string>(content.metadata.at("general.architecture")), "llama");
  EXPECT_EQ(std::get<double>(content.metadata.at("alpha")), 16.5);
  for (const GgufTensor& tensor : tensors) {
    const GgufTensor& read = content.tensors.at(tensor.name);
    EXPECT_EQ(read.shape, tensor.shape);
    EXPECT_EQ(read.type, tensor.type);
    ASSERT_EQ(read.bytes.size(), tensor.bytes.size());
    EXPECT_EQ(std::memcmp(read.bytes.data(), tensor.bytes.data(), tensor.bytes.size()), 0);
  }
}

}  // namespace
}  // namespace cotune
