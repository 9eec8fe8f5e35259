#include "formats/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "formats/error_message.h"
#include "formats/safetensors_bytes.h"
#include "formats/temporary_folder.h"

namespace cotune {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

template <typename T>
TensorView view_of(const std::vector<T>& values, DataType dtype, std::vector<int64_t> shape) {
  return {dtype, std::move(shape), std::as_bytes(std::span(values))};
}

/// A file with the given header text and data.
std::string file_with(const std::string& header, const std::string& data = "") {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes.push_back(static_cast<char>(header.size() >> (8 * i) & 0xff));
  return bytes + header + data;
}

std::string refusal(const std::string& file) {
  return user_error_of([&] { parse_safetensors(bytes_of(file), "x.safetensors"); });
}

std::string refusal_of_header(const std::string& header, const std::string& data = "") {
  return refusal(file_with(header, data));
}

TEST(SafetensorsWriter, ReturnsWhatWasWritten) {
  const std::vector<float> matrix = {1, 2, 3, 4, 5, 6};
  const std::vector<int64_t> ids = {7};
  const std::vector<uint8_t> odd = {1, 2, 3};
  const NamedTensor tensors[] = {{"odd", view_of(odd, DataType::u8, {3})},
                                 {"matrix", view_of(matrix, DataType::f32, {2, 3})},
                                 {"scalar", view_of(ids, DataType::i64, {})},
                                 {"empty", {DataType::bf16, {0, 4}, {}}}};
  const std::string file = safetensors_bytes(tensors, {{"format", "pt"}});
  const SafetensorsContent content = parse_safetensors(bytes_of(file), "x");
  ASSERT_EQ(content.tensors.size(), 4u);
  EXPECT_EQ(content.metadata, (std::map<std::string, std::string>{{"format", "pt"}}));
  for (const NamedTensor& tensor : tensors) {
    const TensorView& read = content.tensors.find(tensor.name)->second;
    EXPECT_EQ(read.dtype, tensor.tensor.dtype);
    EXPECT_EQ(read.shape, tensor.tensor.shape);
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(read.bytes.data()), read.bytes.size()),
              std::string(reinterpret_cast<const char*>(tensor.tensor.bytes.data()), read.bytes.size()));
  }
}

TEST(SafetensorsWriter, GivesEqualBytesInAnyOrderAndAlignsEveryTensor) {
  const std::vector<double> wide = {1};
  const std::vector<uint8_t> narrow = {1, 2, 3};
  const std::vector<float> middle = {1};
  const NamedTensor a{"a", view_of(narrow, DataType::u8, {3})}, b{"b", view_of(wide, DataType::f64, {1})},
      c{"c", view_of(middle, DataType::f32, {1})};
  const std::string file = safetensors_bytes(std::vector{a, b, c});
  EXPECT_EQ(file, safetensors_bytes(std::vector{c, a, b}));
  const SafetensorsContent content = parse_safetensors(bytes_of(file), "x");
  for (const auto& [name, view] : content.tensors) {
    const auto offset = view.bytes.data() - bytes_of(file).data();
    EXPECT_EQ(static_cast<size_t>(offset) % element_bytes(view.dtype), 0u) << name;
  }
}

TEST(SafetensorsReader, ReadsAnEmptyFileOfTensors) {
  EXPECT_TRUE(parse_safetensors(bytes_of(file_with("{}")), "x").tensors.empty());
}

TEST(SafetensorsReader, NamesFileAndTensorWhenTruncated) {
  const std::vector<float> values = {1, 2, 3, 4};
  const std::string file =
      safetensors_bytes(std::vector{NamedTensor{"layer.weight", view_of(values, DataType::f32, {4})}});
  for (size_t length = 0; length < file.size(); ++length) {
    EXPECT_THAT(refusal(file.substr(0, length)), HasSubstr("x.safetensors")) << length;
  }
  EXPECT_THAT(refusal(file.substr(0, file.size() - 1)),
              AllOf(HasSubstr("'layer.weight'"), HasSubstr("truncated")));
}

TEST(SafetensorsReader, RefusesAHeaderLongerThanTheFile) {
  EXPECT_THAT(refusal(std::string("\x10\0\0\0\0\0\0\0{}", 10)), HasSubstr("truncated"));
  EXPECT_THAT(refusal(std::string("\xff\xff\xff\xff\xff\xff\xff\xff{}", 10)),
              HasSubstr("not a safetensors file"));
}

TEST(SafetensorsReader, SaysWhatGitLfsLeft) {
  EXPECT_THAT(refusal("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 269060552\n"),
              AllOf(HasSubstr("x.safetensors: is what Git LFS leaves"), HasSubstr("`git lfs pull`")));
}

TEST(SafetensorsReader, RefusesAHeaderThatIsNotSuchJson) {
  EXPECT_THAT(refusal_of_header("{"), HasSubstr("not JSON"));
  EXPECT_THAT(refusal_of_header("[]"), HasSubstr("must be a JSON object"));
  EXPECT_THAT(refusal_of_header(std::string(100000, '[')), HasSubstr("nested too deeply"));
  EXPECT_THAT(refusal_of_header(R"({"a": 1})"), HasSubstr("'a'"));
  EXPECT_THAT(refusal_of_header(R"({"__metadata__": {"a": 1}})"), HasSubstr("__metadata__.a"));
  EXPECT_THAT(refusal_of_header("{\"\xff\": 1}"), HasSubstr("not JSON"));
}

TEST(SafetensorsReader, RefusesMissingFields) {
  EXPECT_THAT(refusal_of_header(R"({"a": {"shape": [1], "data_offsets": [0, 4]}})", "1234"),
              HasSubstr("no dtype"));
  EXPECT_THAT(refusal_of_header(R"({"a": {"dtype": "F32", "data_offsets": [0, 4]}})", "1234"),
              HasSubstr("no shape"));
  EXPECT_THAT(refusal_of_header(R"({"a": {"dtype": "F32", "shape": [1]}})", "1234"),
              HasSubstr("no data_offsets"));
}

TEST(SafetensorsReader, RefusesUnknownTypesAndListsTheKnown) {
  EXPECT_THAT(refusal_of_header(R"({"a": {"dtype": "F8_E4M3", "shape": [1], "data_offsets": [0, 1]}})", "1"),
              AllOf(HasSubstr("'a'"), HasSubstr("F8_E4M3"), HasSubstr("BF16")));
  EXPECT_THAT(refusal_of_header(R"({"a": {"dtype": 3, "shape": [1], "data_offsets": [0, 1]}})", "1"),
              HasSubstr("dtype 3"));
}

TEST(SafetensorsReader, RefusesShapesThatAreNegativeFractionalOrOverflow) {
  const auto with_shape = [](const std::string& shape) {
    return refusal_of_header(R"({"a": {"dtype": "F32", "shape": )" + shape + R"(, "data_offsets": [0, 4]}})",
                             "1234");
  };
  EXPECT_THAT(with_shape("[-1]"), HasSubstr("none negative"));
  EXPECT_THAT(with_shape("[1.5]"), HasSubstr("whole numbers"));
  EXPECT_THAT(with_shape("1"), HasSubstr("must be a list"));
  EXPECT_THAT(with_shape("[4294967296, 4294967296]"), HasSubstr("overflows"));
  EXPECT_THAT(with_shape("[4611686018427387904, 2]"), HasSubstr("overflows"));
  EXPECT_THAT(with_shape("[18446744073709551615]"), HasSubstr("whole numbers"));
  EXPECT_THAT(with_shape("[2]"), HasSubstr("need 8 bytes"));
  EXPECT_EQ(with_shape("[1]"), "");
}

TEST(SafetensorsReader, RefusesOffsetsThatRunBackwardsOrAreNoNumbers) {
  const auto with_offsets = [](const std::string& offsets) {
    return refusal_of_header(R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": )" + offsets + "}}",
                             "1234");
  };
  EXPECT_THAT(with_offsets("[4, 0]"), HasSubstr("backwards"));
  EXPECT_THAT(with_offsets("[0]"), HasSubstr("two whole numbers"));
  EXPECT_THAT(with_offsets("[-4, 0]"), HasSubstr("two whole numbers"));
  EXPECT_THAT(with_offsets("[18446744073709551612, 18446744073709551615]"), HasSubstr("past the end"));
}

TEST(SafetensorsReader, RefusesOverlapsGapsAndLooseBytes) {
  const std::string one = R"("dtype": "U8", "shape": [2], "data_offsets": )";
  EXPECT_THAT(refusal_of_header("{\"a\": {" + one + "[0, 2]}, \"b\": {" + one + "[1, 3]}}", "123"),
              HasSubstr("overlaps"));
  EXPECT_THAT(refusal_of_header("{\"a\": {" + one + "[0, 2]}, \"b\": {" + one + "[3, 5]}}", "12345"),
              HasSubstr("belong to no tensor"));
  EXPECT_THAT(refusal_of_header("{\"a\": {" + one + "[0, 2]}}", "123"), HasSubstr("belong to no tensor"));
}

TEST(SafetensorsReader, RefusesANameThatOccursTwice) {
  const std::string entry = R"({"dtype": "U8", "shape": [1], "data_offsets": [0, 1]})";
  EXPECT_THAT(refusal_of_header("{\"a\": " + entry + ", \"a\": " + entry + "}", "1"), HasSubstr("'a' twice"));
}

TEST(SafetensorsFile, NamesTheFileWhenATensorIsAskedForThatIsNotThere) {
  const TemporaryFolder folder;
  const auto path = folder.write("model.safetensors", file_with("{}"));
  const SafetensorsFile file(path);
  EXPECT_THAT(user_error_of([&] { file.at("norm"); }), AllOf(HasSubstr(path.string()), HasSubstr("'norm'")));
}

TEST(SafetensorsFolder, FollowsTheIndex) {
  const TemporaryFolder folder;
  const std::vector<float> values = {1, 2};
  folder.write("one.safetensors",
               safetensors_bytes(std::vector{NamedTensor{"a", view_of(values, DataType::f32, {2})}}));
  folder.write("two.safetensors",
               safetensors_bytes(std::vector{NamedTensor{"b", view_of(values, DataType::f32, {1, 2})}}));
  folder.write("model.safetensors.index.json",
               R"({"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}})");
  const SafetensorsFolder tensors(folder.path());
  ASSERT_EQ(tensors.tensors().size(), 2u);
  EXPECT_EQ(tensors.tensors().find("b")->second.tensor->shape, (std::vector<int64_t>{1, 2}));
}

TEST(SafetensorsFolder, NamesEveryTensorThatIsNotWhereTheIndexSays) {
  const TemporaryFolder folder;
  folder.write("one.safetensors", file_with("{}"));
  folder.write("model.safetensors.index.json",
               R"({"weight_map": {"a": "one.safetensors", "b": "one.safetensors"}})");
  EXPECT_THAT(user_error_of([&] { SafetensorsFolder{folder.path()}; }),
              AllOf(HasSubstr("one.safetensors: a: "), HasSubstr("one.safetensors: b: ")));
}

TEST(SafetensorsFolder, NamesEveryFileOfTheIndexThatCannotBeRead) {
  const TemporaryFolder folder;
  folder.write("one.safetensors", "short");
  folder.write("three.safetensors", file_with("{}"));
  folder.write("model.safetensors.index.json",
               R"({"weight_map": {"a": "one.safetensors", "b": "two.safetensors", "c": "three.safetensors", "d": "one.safetensors"}})");
  const std::string message = user_error_of([&] { SafetensorsFolder{folder.path()}; });
  EXPECT_THAT(message, AllOf(HasSubstr("one.safetensors"), HasSubstr("two.safetensors"), HasSubstr("three.safetensors: c: ")));
  EXPECT_EQ(std::count(message.begin(), message.end(), '\n'), 2) << message;
}

TEST(SafetensorsFolder, TakesTheSingleFileWhereAnIndexIsBesideIt) {
  const TemporaryFolder folder;
  const std::vector<float> values = {1, 2};
  folder.write("model.safetensors", safetensors_bytes(std::vector{NamedTensor{"a", view_of(values, DataType::f32, {2})}}));
  folder.write("model.safetensors.index.json", R"({"weight_map": {"b": "absent.safetensors"}})");
  const SafetensorsFolder tensors(folder.path());
  EXPECT_EQ(tensors.tensors().size(), 1u);
  EXPECT_TRUE(tensors.tensors().contains("a"));
}

TEST(SafetensorsFolder, NamesEveryEntryOfTheIndexThatLeavesTheFolder) {
  const TemporaryFolder folder;
  folder.write("model.safetensors.index.json", R"({"weight_map": {"a": "../x", "b": 1, "c": "one.safetensors"}})");
  EXPECT_THAT(user_error_of([&] { SafetensorsFolder{folder.path()}; }),
              AllOf(HasSubstr("weight_map.a: "), HasSubstr("weight_map.b: "), ::testing::Not(HasSubstr("weight_map.c"))));
}

TEST(SafetensorsFolder, RefusesAnIndexThatLeavesTheFolder) {
  const TemporaryFolder folder;
  for (const char* name : {"../a.safetensors", "/etc/passwd", "..", ""}) {
    folder.write("model.safetensors.index.json", fmt::format(R"({{"weight_map": {{"a": "{}"}}}})", name));
    EXPECT_THAT(user_error_of([&] { SafetensorsFolder{folder.path()}; }), HasSubstr("weight_map.a")) << name;
  }
  folder.write("model.safetensors.index.json", "{");
  EXPECT_THAT(user_error_of([&] { SafetensorsFolder{folder.path()}; }), HasSubstr("not JSON"));
  folder.write("model.safetensors.index.json", "{}");
  EXPECT_THAT(user_error_of([&] { SafetensorsFolder{folder.path()}; }), HasSubstr("weight_map"));
}

TEST(SafetensorsFolder, SaysWhatItLooksForInAFolderWithoutWeights) {
  const TemporaryFolder folder;
  EXPECT_THAT(user_error_of([&] { SafetensorsFolder{folder.path()}; }), HasSubstr("model.safetensors"));
}

}  // namespace
}  // namespace cotune
