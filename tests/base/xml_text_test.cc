#include "base/xml_text.h"

#include <gtest/gtest.h>

namespace cotune {
namespace {

TEST(XmlText, MeansItsCharactersAndNothingElse) {
  EXPECT_EQ(xml_text("<a href=\"x\">'&'</a>"), "&lt;a href=&quot;x&quot;&gt;&#39;&amp;&#39;&lt;/a&gt;");
  EXPECT_EQ(xml_text("größe, 天"), "größe, 天");
  EXPECT_EQ(xml_text(""), "");
}

TEST(XmlText, HoldsNoControlCharacterButLinesThatAreAskedFor) {
  EXPECT_EQ(xml_text("a\nb\x1b\x7f"), "a b  ");
  EXPECT_EQ(xml_text("a\n\tb\r", true), "a\n\tb ");
}

TEST(XmlText, IsWellFormedWhateverTheBytes) {
  EXPECT_EQ(xml_text("\xff" "größe"), "\uFFFDgröße");
  EXPECT_EQ(xml_text("a\xF0\x9F\x91<"), "a\uFFFD&lt;");
  EXPECT_EQ(xml_text("\xEF\xBF\xBE" "a" "\xEF\xBF\xBF"), "\uFFFDa\uFFFD");  // U+FFFE, U+FFFF
}

}  // namespace
}  // namespace cotune
