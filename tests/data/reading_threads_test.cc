/// Reading with any number of threads gives what one thread gives: examples, order, reports and messages.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "base/error.h"
#include "base/random.h"
#include "data/dataset_reader.h"
#include "data/example_encoder.h"
#include "data/ordered_work.h"
#include "data/records/compressed_stream.h"
#include "data/records/jsonl.h"

namespace cotune {
namespace {

const ChatTemplate& chat_template() {
  static const ChatTemplate chat(
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
      "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}", "chatml", {});
  return chat;
}

/// Lines of one format, some of them mistaken, long, empty or ill-formed, as the key draws them.
std::string random_lines(uint64_t key, int64_t count) {
  const bool is_chat = uniform(key, 0) < 0.5;
  std::string lines;
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t own = mix_key(key, static_cast<uint64_t>(i) + 1);
    const std::string text(uniform_below(own, 0, 60), static_cast<char>('a' + uniform_below(own, 1, 26)));
    const uint64_t kind = uniform_below(own, 2, 40);
    if (kind == 0) lines += "{\"text\": oops\n";
    if (kind == 1) lines += "{\"question\": 1}\n";
    if (kind == 2) lines += "\n  \n";
    if (kind == 3) lines += "{\"text\":\"a\xFFz\"}\n";
    if (is_chat) {
      lines += R"({"messages":[{"role":"user","content":")" + text + R"("},{"role":")" + (kind == 4 ? "bot" : "assistant") +
               R"(","content":"b"}]})" + "\n";
    } else {
      lines += R"({"prompt":")" + text + R"(","completion":)" + (kind == 4 ? "7" : "\"c\"") + "}\n";
    }
  }
  return lines;
}

struct Result {
  Dataset train{"f"}, eval{"f"};
  FileReport report;
  std::vector<Diagnostic> mistakes;
  std::string failure;
};

Result read(const std::string& bytes, const DataSpec& spec, int threads) {
  Result result;
  std::istringstream stream(bytes);
  const Compression compression = compression_of(stream);
  const std::unique_ptr<std::istream> content = compression == Compression::none ? nullptr : decompress(stream, compression);
  JsonlReader lines(content ? *content : stream);
  Diagnostics diagnostics;
  ExamplesInMemory sink(result.train, result.eval);
  try {
    result.report = read_records(lines, "f", {spec, ExampleEncoder(), &chat_template()}, true, sink, diagnostics, {.threads = threads});
  } catch (const UserError& error) {
    result.failure = error.what();
  }
  result.mistakes = diagnostics.items();
  return result;
}

void expect_equal(const Result& one, const Result& several) {
  EXPECT_EQ(one.report, several.report);
  EXPECT_EQ(one.failure, several.failure);
  EXPECT_EQ(one.mistakes, several.mistakes);
  EXPECT_EQ(one.train.content_hash(), several.train.content_hash());
  EXPECT_EQ(one.eval.content_hash(), several.eval.content_hash());
  ASSERT_EQ(one.train.size(), several.train.size());
  for (int64_t i = 0; i < one.train.size(); ++i) ASSERT_EQ(one.train.example(i), several.train.example(i)) << i;
}

TEST(ReadingThreads, GiveWhatOneGives) {
  for (uint64_t key = 0; key < 12; ++key) {
    DataSpec spec;
    spec.eval_fraction = 0.2;
    spec.truncation = static_cast<Truncation>(key % 4);
    spec.max_length = key % 3 == 0 ? 0 : 50;
    spec.max_examples = key % 5 == 4 ? 700 : 0;
    const std::string lines = random_lines(key, 1500);
    const Result one = read(lines, spec, 1);
    EXPECT_GT(one.train.size(), 300);
    EXPECT_FALSE(one.mistakes.empty());
    for (const int threads : {2, 5}) expect_equal(one, read(lines, spec, threads));
  }
}

TEST(ReadingThreads, FindTheFormatThatOneFinds) {
  std::string lines;
  for (int i = 0; i < 600; ++i) lines += "{\"question\": 1}\n";  // none says a format
  lines += random_lines(0, 600) + random_lines(1, 600);
  expect_equal(read(lines, {}, 1), read(lines, {}, 4));
}

TEST(ReadingThreads, TellWhatIsWrongWithTheFileWhereOneDoes) {
  const std::string whole = [] {
    std::string gzip;  // stored blocks: the lines as they are
    const std::string lines = random_lines(3, 4000);
    gzip.assign("\x1f\x8b\x08\0\0\0\0\0\0\x03", 10);
    for (size_t at = 0; at < lines.size(); at += 65535) {
      const size_t count = std::min<size_t>(65535, lines.size() - at);
      gzip += '\0';
      for (const size_t number : {count, ~count & 0xffff}) gzip += {static_cast<char>(number & 0xff), static_cast<char>(number >> 8)};
      gzip += lines.substr(at, count);
    }
    return gzip;
  }();
  DataSpec spec;
  const Result one = read(whole, spec, 1);
  EXPECT_THAT(one.failure, testing::HasSubstr("end early"));
  expect_equal(one, read(whole, spec, 3));
  spec.max_examples = 1000;  // reading ends before the damage
  EXPECT_EQ(read(whole, spec, 1).failure, "");
  expect_equal(read(whole, spec, 1), read(whole, spec, 3));
}

TEST(OrderedWork, GivesResultsInOrderAndFailuresInTheirPlaces) {
  OrderedWork<int, int> work(3, [](int& number) {
    if (number % 7 == 3) throw std::runtime_error(std::to_string(number));
    return number * number;
  });
  for (int i = 0; i < 100; ++i) work.give(i);
  EXPECT_EQ(work.count(), 100u);
  for (int i = 0; i < 100; ++i) {
    if (i % 7 == 3) {
      EXPECT_THROW(work.take(), std::runtime_error);
    } else {
      EXPECT_EQ(work.take(), i * i);
    }
  }
  for (int i = 0; i < 100; ++i) work.give(i);  // left undone by the destructor, or done
}

}  // namespace
}  // namespace cotune
