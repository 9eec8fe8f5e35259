#include "data/records/foreign_file.h"

#include <gtest/gtest.h>

#include <sstream>

namespace cotune {
namespace {

using namespace std::string_literals;

std::string complaint(const std::string& bytes) {
  std::istringstream stream(bytes);
  const std::string text = foreign_file_complaint(stream);
  EXPECT_EQ(stream.tellg(), 0);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(stream), {}), bytes);
  return text.substr(0, text.find(';'));
}

TEST(ForeignFile, IsToldByItsBytes) {
  EXPECT_EQ(complaint("BZh91AY&SY....."), "is compressed by bzip2");
  EXPECT_EQ(complaint("BZh9\x17\x72\x45\x38\x50\x90\0\0\0\0"s), "is compressed by bzip2") << "empty";
  EXPECT_EQ(complaint("\xfd" "7zXZ\0\0"s), "is compressed by xz");
  EXPECT_EQ(complaint("\x04\x22\x4d\x18"), "is compressed by lz4");
  EXPECT_EQ(complaint("PK\x03\x04...."), "is a zip archive");
  EXPECT_EQ(complaint("a.jsonl" + std::string(250, '\0') + "ustar\0"s), "is a tar archive");
  EXPECT_EQ(complaint("ARROW1\0\0...."s), "is an Arrow IPC file (Feather)");
  EXPECT_EQ(complaint("\xff\xff\xff\xff\x10\0\0\0"s), "is a stream of Arrow IPC, as the cache of `datasets` holds");
  EXPECT_EQ(complaint("ORC....ORC\x17"), "is an ORC file");
  EXPECT_EQ(complaint("\xff\xfe{\0"s), "is text in UTF-16");
}

TEST(ForeignFile, IsNoText) {
  for (const std::string& text : {""s, "{"s, "{}"s, "BZh9 is a key\n"s, "ORC\n"s, "ORC\nORC\n"s, "ORCs are no men\n"s, "PK\n"s, "Object\n"s, "\xef\xbb\xbf{}\n"s, "7z\n"s}) {
    EXPECT_EQ(complaint(text), "") << text;
  }
}

}  // namespace
}  // namespace cotune
