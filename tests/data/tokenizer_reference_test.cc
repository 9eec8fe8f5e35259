// Token ids and decoded texts against the Hugging Face `tokenizers` library. A case is a folder made by
// scripts/reference/tokenizer_reference.py, which describes the files. COTUNE_TOKENIZER_CASES names a folder of further
// cases (the script's --live).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/file.h"
#include "data/tokenizer/tokenizer.h"
#include "support/source_folder.h"

namespace cotune {
namespace {

namespace fs = std::filesystem;

uint64_t fnv1a(std::string_view bytes) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : bytes) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
  return hash;
}

std::string hash_of(const std::vector<int32_t>& ids) {
  return fmt::format("{:016x}", fnv1a({reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(int32_t)}));
}

std::vector<std::string> read_texts(const fs::path& path) {
  const std::string bytes = read_file(path);
  std::vector<std::string> out;
  for (size_t at = 0; at + 4 <= bytes.size();) {
    uint32_t length;
    std::memcpy(&length, bytes.data() + at, 4);
    out.push_back(bytes.substr(at + 4, length));
    at += 4 + length;
  }
  return out;
}

Tokenizer load(const fs::path& folder) {
  if (fs::exists(folder / "tokenizer.json")) return Tokenizer::from_json_file(folder / "tokenizer.json");
  const auto json = nlohmann::json::parse(read_file(folder / "gguf_vocabulary.json"));
  GgufVocabulary in;
  in.model = json.value("model", "gpt2");
  in.pre = json.value("pre", "");
  in.tokens = json.at("tokens").get<std::vector<std::string>>();
  in.token_types = json.at("token_types").get<std::vector<int32_t>>();
  in.merges = json.value("merges", std::vector<std::string>{});
  in.scores = json.value("scores", std::vector<float>{});
  in.bos = json.value("bos", -1);
  return Tokenizer::from_gguf(in, folder.string());
}

void check_case(const fs::path& folder, const Tokenizer& tokenizer) {
  SCOPED_TRACE(folder.string());
  const fs::path own = folder / "texts.bin";
  const std::vector<std::string> texts = read_texts(fs::exists(own) ? own : folder.parent_path() / "texts.bin");
  std::istringstream expected(read_file(folder / "expected.txt"));
  std::string line;
  size_t next_text = 0;
  int wrong = 0;
  while (std::getline(expected, line) && wrong < 5) {
    std::istringstream fields(line);
    std::string kind, ids_hash, text_hash, plain_text_hash;
    fields >> kind;
    std::vector<int32_t> wanted;
    if (kind == "text") {
      fields >> ids_hash >> text_hash;
      for (int32_t id; fields >> id;) wanted.push_back(id);
      ASSERT_LT(next_text, texts.size());
      const std::string& text = texts[next_text++];
      const std::vector<int32_t> ids = tokenizer.encode(text, true);
      if (hash_of(ids) != ids_hash) {
        ++wrong;
        ADD_FAILURE() << "text " << next_text - 1 << " of " << text.size() << " bytes: got " << testing::PrintToString(ids)
                      << "\nwanted " << testing::PrintToString(wanted) << "\nfor " << testing::PrintToString(text);
        continue;
      }
      if (!wanted.empty()) {
        EXPECT_EQ(ids, wanted);
      }
      const std::string decoded = tokenizer.decode(ids);
      if (fmt::format("{:016x}", fnv1a(decoded)) != text_hash) {
        ++wrong;
        ADD_FAILURE() << "text " << next_text - 1 << " decodes to " << testing::PrintToString(decoded);
      }
    } else {
      ASSERT_EQ(kind, "ids");
      fields >> text_hash >> plain_text_hash;
      for (int32_t id; fields >> id;) wanted.push_back(id);
      const std::string decoded = tokenizer.decode(wanted);
      if (fmt::format("{:016x}", fnv1a(decoded)) != text_hash ||
          fmt::format("{:016x}", fnv1a(tokenizer.decode(wanted, true))) != plain_text_hash) {
        ++wrong;
        ADD_FAILURE() << testing::PrintToString(wanted) << " decode to " << testing::PrintToString(decoded);
      }
    }
  }
  EXPECT_EQ(next_text, texts.size());
}

/// As it is read, and read again after it was written.
void check_case(const fs::path& folder) {
  const Tokenizer tokenizer = load(folder);
  check_case(folder, tokenizer);
  const Tokenizer again = Tokenizer::from_json(tokenizer.to_json(), "written tokenizer.json");
  check_case(folder, again);
  EXPECT_EQ(again.to_json(), tokenizer.to_json());
}

std::vector<fs::path> case_folders(const fs::path& parent) {
  std::vector<fs::path> out;
  for (const auto& entry : fs::directory_iterator(parent)) {
    if (fs::exists(entry.path() / "expected.txt")) out.push_back(entry.path());
  }
  return out;
}

TEST(TokenizerReference, EqualsHuggingFaceOnCommittedCases) {
  const auto folders = case_folders(source_folder() / "tests/data/tokenizers");
  EXPECT_GE(folders.size(), 5u);
  for (const fs::path& folder : folders) check_case(folder);
}

TEST(TokenizerReference, EqualsHuggingFaceOnLiveCases) {
  const char* parent = std::getenv("COTUNE_TOKENIZER_CASES");
  if (parent == nullptr) GTEST_SKIP() << "set by scripts/reference/tokenizer_reference.py --live";
  const auto folders = case_folders(parent);
  EXPECT_FALSE(folders.empty());
  for (const fs::path& folder : folders) check_case(folder);
}

}  // namespace
}  // namespace cotune
