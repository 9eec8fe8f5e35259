#include "formats/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/error_message.h"
#include "formats/gguf_builder.h"
#include "formats/temporary_folder.h"

namespace cotune {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

template <typename T>
std::string raw(T value) {
  return GgufBuilder::raw(value);
}

GgufContent parse(const std::string& file) {
  return parse_gguf(std::as_bytes(std::span(file)), "x.gguf");
}
std::string refusal(const std::string& file) {
  return user_error_of([&] { parse(file); });
}

TEST(GgufReader, ReadsEveryMetadataType) {
  GgufBuilder builder;
  builder.pair("u8", 0, raw<uint8_t>(200))
      .pair("i8", 1, raw<int8_t>(-5))
      .pair("u16", 2, raw<uint16_t>(60000));
  builder.pair("i16", 3, raw<int16_t>(-300))
      .pair("u32", 4, raw<uint32_t>(4000000000))
      .pair("i32", 5, raw<int32_t>(-7));
  builder.pair("f32", 6, raw(0.5f))
      .pair("bool", 7, raw<uint8_t>(1))
      .string("string", std::string_view("a\0b", 3));
  builder.pair("u64", 10, raw(UINT64_MAX)).pair("i64", 11, raw(INT64_MIN)).pair("f64", 12, raw(0.1));
  builder.array("bytes", 0, 2, raw<uint8_t>(1) + raw<uint8_t>(255)).array("floats", 6, 1, raw(0.25f));
  builder.array("strings", 8, 2, GgufBuilder::text("x") + GgufBuilder::text("")).array("none", 8, 0, "");
  builder.array("bools", 7, 2, raw<uint8_t>(0) + raw<uint8_t>(1)).array("big", 10, 1, raw(UINT64_MAX));
  const auto metadata = parse(builder.bytes()).metadata;
  ASSERT_EQ(metadata.size(), 18u);
  const auto at = [&](const char* key) { return metadata.find(key)->second; };
  EXPECT_EQ(at("u8"), GgufValue(int64_t{200}));
  EXPECT_EQ(at("i8"), GgufValue(int64_t{-5}));
  EXPECT_EQ(at("u16"), GgufValue(int64_t{60000}));
  EXPECT_EQ(at("i16"), GgufValue(int64_t{-300}));
  EXPECT_EQ(at("u32"), GgufValue(int64_t{4000000000}));
  EXPECT_EQ(at("i32"), GgufValue(int64_t{-7}));
  EXPECT_EQ(at("f32"), GgufValue(0.5));
  EXPECT_EQ(at("bool"), GgufValue(true));
  EXPECT_EQ(at("string"), GgufValue(std::string("a\0b", 3)));
  EXPECT_EQ(at("u64"), GgufValue(UINT64_MAX));
  EXPECT_EQ(at("i64"), GgufValue(INT64_MIN));
  EXPECT_EQ(at("f64"), GgufValue(0.1));
  EXPECT_EQ(at("bytes"), GgufValue(std::vector<int64_t>{1, 255}));
  EXPECT_EQ(at("floats"), GgufValue(std::vector<double>{0.25}));
  EXPECT_EQ(at("strings"), GgufValue(std::vector<std::string>{"x", ""}));
  EXPECT_EQ(at("none"), GgufValue(std::vector<std::string>{}));
  EXPECT_EQ(at("bools"), GgufValue(std::vector<bool>{false, true}));
  EXPECT_EQ(at("big"), GgufValue(std::vector<uint64_t>{UINT64_MAX}));
}

TEST(GgufReader, PlacesTensorsByTheFilesAlignment) {
  for (const uint32_t version : {2u, 3u}) {
    GgufBuilder builder(version);
    builder.u32("general.alignment", 64).tensor("a", {2, 3}, 0, 0).tensor("b", {32}, 8, 64);
    const std::string data = std::string(24, 'a') + std::string(40, '\0') + std::string(34, 'b');
    const std::string file = builder.bytes(data, 64);
    const GgufContent content = parse(file);
    EXPECT_EQ(content.version, version);
    const GgufTensor& a = content.tensors.find("a")->second;
    EXPECT_EQ(a.shape, (std::vector<int64_t>{3, 2}));
    EXPECT_EQ(a.bytes.size(), 24u);
    EXPECT_EQ(a.bytes.front(), std::byte{'a'});
    const GgufTensor& b = content.tensors.find("b")->second;
    EXPECT_EQ(b.type, GgufType::Q8_0);
    EXPECT_EQ(b.bytes.size(), 34u);
    EXPECT_EQ(b.bytes.back(), std::byte{'b'});
  }
}

TEST(GgufReader, RefusesEveryTruncation) {
  GgufBuilder builder;
  builder.string("general.architecture", "llama")
      .array("tokens", 8, 1, GgufBuilder::text("x"))
      .tensor("a", {4}, 0, 0);
  const std::string file = builder.bytes(std::string(16, 'a'));
  EXPECT_EQ(refusal(file), "");
  for (size_t length = 0; length < file.size(); ++length) {
    EXPECT_THAT(refusal(file.substr(0, length)), HasSubstr("x.gguf")) << length;
  }
  EXPECT_THAT(refusal(file.substr(0, file.size() - 1)), AllOf(HasSubstr("'a'"), HasSubstr("truncated")));
}

TEST(GgufReader, RefusesOtherFilesAndVersions) {
  EXPECT_THAT(refusal("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 269060552\n"), HasSubstr("x.gguf: is what Git LFS leaves"));
  EXPECT_THAT(refusal("PK\3\4 not a model at all"), HasSubstr("not a GGUF file"));
  EXPECT_THAT(refusal(""), HasSubstr("not a GGUF file"));
  EXPECT_THAT(refusal(GgufBuilder(1).bytes()), AllOf(HasSubstr("version 1"), HasSubstr("2, 3")));
  EXPECT_THAT(refusal(GgufBuilder(4).bytes()), HasSubstr("version 4"));
  EXPECT_THAT(refusal(GgufBuilder(0x03000000).bytes()), HasSubstr("big-endian"));
}

TEST(GgufReader, RefusesHostileCountsWithoutAllocatingThem) {
  GgufBuilder many_pairs, many_tensors;
  many_pairs.pair_count = UINT64_MAX;
  many_tensors.tensor_count = UINT64_MAX;
  EXPECT_THAT(refusal(many_pairs.bytes()), HasSubstr("truncated"));
  EXPECT_THAT(refusal(many_tensors.bytes()), HasSubstr("x.gguf"));
  for (const uint64_t count : {uint64_t{1} << 40, uint64_t{1} << 61, UINT64_MAX}) {
    EXPECT_THAT(refusal(GgufBuilder().array("tokens", 8, count, "").bytes()),
                AllOf(HasSubstr("tokens"), HasSubstr("does not fit")));
    EXPECT_THAT(refusal(GgufBuilder().array("scores", 6, count, "").bytes()), HasSubstr("does not fit"));
    EXPECT_THAT(refusal(GgufBuilder().pair("name", 8, raw(count)).bytes()),
                AllOf(HasSubstr("name"), HasSubstr("truncated")));
  }
}

TEST(GgufReader, RefusesUnknownOrNestedMetadata) {
  EXPECT_THAT(refusal(GgufBuilder().pair("a", 13, "").bytes()), HasSubstr("unknown metadata type 13"));
  EXPECT_THAT(refusal(GgufBuilder().array("a", 99, 1, "").bytes()), HasSubstr("unknown metadata type 99"));
  EXPECT_THAT(refusal(GgufBuilder().array("a", 9, 1, "").bytes()), HasSubstr("arrays of arrays"));
  EXPECT_THAT(refusal(GgufBuilder().pair("a", 7, raw<uint8_t>(2)).bytes()), HasSubstr("bool"));
  EXPECT_THAT(refusal(GgufBuilder().u32("a", 1).u32("a", 1).bytes()), HasSubstr("'a' occurs twice"));
}

TEST(GgufReader, RefusesAlignmentsThatAreNoPowerOfTwo) {
  for (const uint32_t alignment : {0u, 3u, 1u << 30, UINT32_MAX}) {
    EXPECT_THAT(refusal(GgufBuilder().u32("general.alignment", alignment).bytes()),
                HasSubstr("general.alignment"));
  }
  EXPECT_THAT(refusal(GgufBuilder().string("general.alignment", "32").bytes()),
              HasSubstr("general.alignment"));
}

TEST(GgufReader, RefusesShapesThatOverflowAreEmptyOrDoNotDivideIntoBlocks) {
  EXPECT_THAT(refusal(GgufBuilder().tensor("a", {1ull << 32, 1ull << 32}, 0, 0).bytes()),
              AllOf(HasSubstr("'a'"), HasSubstr("overflows")));
  EXPECT_THAT(refusal(GgufBuilder().tensor("a", {1ull << 60}, 0, 0).bytes()),
              AllOf(HasSubstr("'a'"), HasSubstr("past the end")));
  EXPECT_THAT(refusal(GgufBuilder().tensor("a", {0}, 0, 0).bytes()), HasSubstr("empty"));
  EXPECT_THAT(refusal(GgufBuilder().tensor("a", {33}, 8, 0).bytes()), HasSubstr("blocks of 32"));
  EXPECT_THAT(refusal(GgufBuilder().tensor("a", {1, 1, 1, 1, 1}, 0, 0).bytes("1234")),
              HasSubstr("5 dimensions"));
}

TEST(GgufReader, RefusesOffsetsThatAreUnalignedOverlapOrLieOutside) {
  const std::string data(64, 'x');
  EXPECT_THAT(refusal(GgufBuilder().tensor("a", {4}, 0, 8).bytes(data)), HasSubstr("not a multiple of 32"));
  EXPECT_THAT(refusal(GgufBuilder().tensor("a", {4}, 0, 64).bytes(data)), HasSubstr("past the end"));
  EXPECT_THAT(refusal(GgufBuilder().tensor("a", {4}, 0, UINT64_MAX - 31).bytes(data)),
              HasSubstr("past the end"));
  EXPECT_THAT(refusal(GgufBuilder().tensor("a", {16}, 0, 0).tensor("b", {4}, 0, 32).bytes(data)),
              HasSubstr("overlaps"));
  EXPECT_THAT(refusal(GgufBuilder().tensor("a", {4}, 0, 0).tensor("a", {4}, 0, 32).bytes(data)),
              HasSubstr("occurs twice"));
}

TEST(GgufReader, KeepsKnownTypesThatCannotBeDequantisedAndRefusesUnknownOnes) {
  const std::string file = GgufBuilder().tensor("a", {256}, 14, 0).bytes(std::string(210, 'x'));
  EXPECT_EQ(gguf_type_name(parse(file).tensors.find("a")->second.type), "Q6_K");
  EXPECT_THAT(refusal(GgufBuilder().tensor("a", {32}, 99, 0).bytes(std::string(64, 'x'))),
              HasSubstr("unknown tensor type 99"));
}

TEST(GgufFile, NamesKeyAndTypesWhenMetadataHaveAnotherType) {
  const TemporaryFolder folder;
  GgufBuilder builder;
  builder.string("name", "x").u32("count", 3).f32("rate", 0.5f).pair("big", 10, raw(UINT64_MAX));
  const GgufFile file(folder.write("a.gguf", builder.bytes()));
  EXPECT_EQ(file.integer("count"), 3);
  EXPECT_EQ(file.number("count"), 3.0);
  EXPECT_EQ(file.number("rate"), 0.5);
  EXPECT_EQ(file.text("name"), "x");
  EXPECT_EQ(file.integer("absent"), std::nullopt);
  EXPECT_EQ(file.find("absent"), nullptr);
  EXPECT_THAT(user_error_of([&] { file.integer("name"); }),
              AllOf(HasSubstr("a.gguf"), HasSubstr("name: found string"), HasSubstr("accepted: an integer")));
  EXPECT_THAT(user_error_of([&] { file.integer("big"); }), HasSubstr("below 2^63"));
  EXPECT_THAT(user_error_of([&] { file.integer("rate"); }), HasSubstr("found number"));
  EXPECT_THAT(user_error_of([&] { file.number("name"); }), HasSubstr("a number"));
  EXPECT_THAT(user_error_of([&] { file.texts("name"); }), HasSubstr("array of strings"));
  EXPECT_THAT(user_error_of([&] { file.integers("name"); }), HasSubstr("array of integers"));
  EXPECT_THAT(user_error_of([&] { file.numbers("count"); }), HasSubstr("array of floating-point numbers"));
  EXPECT_THAT(user_error_of([&] { file.boolean("count"); }), HasSubstr("a bool"));
  EXPECT_THAT(user_error_of([&] { file.text("count"); }), HasSubstr("a string"));
}

/// Three parts as llama-gguf-split makes them: all else that the metadata say is in the first.
class GgufParts : public ::testing::Test {
 protected:
  static GgufBuilder part(uint16_t number, uint16_t count = 3, const char* tensor = nullptr) {
    GgufBuilder builder;
    if (number == 0) builder.string("name", "x");
    builder.pair("split.no", 2, raw(number)).pair("split.count", 2, raw(count)).pair("split.tensors.count", 5, raw<int32_t>(2));
    if (tensor != nullptr) builder.tensor(tensor, {32}, 0, 0);
    return builder;
  }
  std::filesystem::path write(const std::string& name, const GgufBuilder& builder, char fill = '\0') const {
    return folder.write(name, builder.bytes(builder.tensor_count > 0 ? std::string(128, fill) : ""));
  }
  std::filesystem::path write_all() const {
    write("m-00002-of-00003.gguf", part(1, 3, "a"), 'a');
    write("m-00003-of-00003.gguf", part(2, 3, "b"), 'b');
    return write("m-00001-of-00003.gguf", part(0));
  }
  static std::string refusal(const std::filesystem::path& path) {
    return user_error_of([&] { GgufFile{path}; });
  }
  const TemporaryFolder folder;
};

TEST_F(GgufParts, AreOneFileByTheFirst) {
  const GgufFile file(write_all());
  ASSERT_EQ(file.tensors().size(), 2u);
  EXPECT_EQ(file.find("a")->bytes.front(), std::byte{'a'});
  EXPECT_EQ(file.find("b")->bytes.back(), std::byte{'b'});
  EXPECT_EQ(file.text("name"), "x");
  ASSERT_EQ(file.pairs().size(), 1u) << "it is no part any more";
  EXPECT_EQ(file.pairs()[0].key, "name");
  EXPECT_EQ(file.integer("split.count"), std::nullopt);
  file.drop_pages();
  EXPECT_EQ(file.find("a")->bytes.front(), std::byte{'a'});
}

TEST_F(GgufParts, HaveTheirTensorsInTheOrderOfThePartsWhereverTheseAreMapped) {
  write("m-00002-of-00003.gguf", part(1, 3, "z"), 'z');
  write("m-00003-of-00003.gguf", part(2, 3, "b"), 'b');
  const GgufFile file(write("m-00001-of-00003.gguf", part(0)));
  const std::vector<const GgufTensor*> tensors = file.tensors_as_stored();
  ASSERT_EQ(tensors.size(), 2u);
  EXPECT_EQ(tensors[0]->name, "z");
  EXPECT_EQ(tensors[1]->name, "b");
}

TEST_F(GgufParts, ThatAreMissingOrOfAnotherFileAreAllNamedWithTheWayOut) {
  const std::filesystem::path first = write_all();
  std::filesystem::remove(folder.path() / "m-00002-of-00003.gguf");
  write("m-00003-of-00003.gguf", part(1, 3, "b"));
  EXPECT_THAT(refusal(first),
              AllOf(HasSubstr("m-00002-of-00003.gguf: cannot open"), HasSubstr("m-00003-of-00003.gguf: split.no: is not part 3 of 3"),
                    HasSubstr("split.count: is the first of 3 parts, which must all be in its folder; `llama-gguf-split --merge")));
  write_all();
  write("m-00003-of-00003.gguf", part(2, 3, "a"));
  EXPECT_THAT(refusal(first), HasSubstr("m-00003-of-00003.gguf: a: is in an earlier part too"));
  write("m-00003-of-00003.gguf", part(2));
  EXPECT_THAT(refusal(first), HasSubstr("m-00001-of-00003.gguf: split.tensors.count: found 2; the parts hold 1"));
}

TEST_F(GgufParts, AreToldWhereTheFirstIsNotGiven) {
  write_all();
  EXPECT_THAT(refusal(folder.path() / "m-00002-of-00003.gguf"),
              HasSubstr("split.no: is part 2 of 3; give the first, m-00001-of-00003.gguf"));
  EXPECT_THAT(
      refusal(write("renamed.gguf", part(0))),
      AllOf(HasSubstr("renamed.gguf: split.count: is part 1 of 3, and its name must end in -00001-of-00003.gguf"), HasSubstr("--merge")));
  EXPECT_THAT(refusal(write("m-00010-of-00003.gguf", part(9))), HasSubstr("split.no: found part 9 (counted from 0) of 3"));
  EXPECT_EQ(refusal(write("whole.gguf", part(0, 1))), "");
}

}  // namespace
}  // namespace cotune
