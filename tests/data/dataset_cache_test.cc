#include "data/dataset_cache.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <zlib.h>

#include <fstream>
#include <set>
#include <thread>

#include "base/error.h"
#include "base/file.h"
#include "data/example_encoder.h"
#include "formats/temporary_folder.h"

namespace cotune {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const ExampleEncoder encoder;
constexpr int64_t roomy = int64_t{1} << 30;

std::string chats(int count, const std::string& word = "b") {
  std::string lines;
  for (int i = 0; i < count; ++i) lines += "{\"prompt\":\"" + std::to_string(i) + "\",\"completion\":\"" + word + "\"}\n";
  return lines;
}

class DatasetCaches : public testing::Test {
 protected:
  fs::path file(const std::string& name, const std::string& content) const { return own.write(name, content); }
  DataSpec spec_of(const fs::path& train) const {
    DataSpec spec;
    spec.train = {{train.string()}};
    return spec;
  }
  DatasetCache cache(int64_t most_bytes = roomy) {
    return {folder, most_bytes, [this](const std::string& line) { notices.push_back(line); }};
  }
  JobData read(DatasetCache& from, const DataSpec& spec, int64_t context = 100) {
    return from.read({spec, encoder, nullptr, context}, mistakes);
  }
  JobData read(const DataSpec& spec, int64_t context = 100) {
    DatasetCache fresh = cache();
    return read(fresh, spec, context);
  }
  std::vector<fs::path> sets() const {
    std::vector<fs::path> files;
    for (const CachedSet& set : cached_sets(folder)) files.push_back(set.file);
    return files;
  }
  void set_age(const fs::path& set, int seconds) const {
    timespec times[2] = {{.tv_sec = std::time(nullptr) - seconds, .tv_nsec = 0}, {.tv_sec = std::time(nullptr) - seconds, .tv_nsec = 0}};
    ASSERT_EQ(::utimensat(AT_FDCWD, set.c_str(), times, 0), 0);
  }

  const TemporaryFolder own;
  const fs::path folder = own.path() / "deep" / "cache";
  std::vector<std::string> notices;
  Diagnostics mistakes;
};

void expect_equal(const JobData& one, const JobData& other) {
  EXPECT_EQ(content_hash(one), content_hash(other));
  EXPECT_EQ(one.files, other.files);
  ASSERT_EQ(one.train.size(), other.train.size());
  for (int64_t i = 0; i < one.train.size(); ++i) ASSERT_EQ(one.train.example(i), other.train.example(i));
}

TEST_F(DatasetCaches, TokenizeOnceAndGiveTheSameAgain) {
  DataSpec spec = spec_of(file("a.jsonl", chats(500)));
  spec.eval_fraction = 0.2;
  const JobData memory = read_job_data({spec, encoder, nullptr, 100}, mistakes);
  const JobData first = read(spec), second = read(spec);
  EXPECT_FALSE(first.was_cached);
  EXPECT_TRUE(second.was_cached);
  expect_equal(memory, first);
  expect_equal(memory, second);
  EXPECT_FALSE(second.eval.empty());
  EXPECT_THAT(notices, IsEmpty());
  EXPECT_TRUE(mistakes.empty());
}

TEST_F(DatasetCaches, KeepWhatIsToldOfRecords) {
  DataSpec spec = spec_of(file("texts", "{\"text\":\"a<|im_end|>\"}\n{\"text\":\"b\"}\n"));
  spec.train.push_back({file("tokens", R"({"input_ids":[2,5,6],"labels":[-100,5,6],"attention_mask":[0,1,1]})").string()});
  const JobData first = read(spec), second = read(spec);
  EXPECT_TRUE(second.was_cached);
  expect_equal(first, second);
  EXPECT_THAT(second.files[0].warnings(), ElementsAre(HasSubstr(": 1 of 2 records hold texts of special tokens, such as `<|im_end|>`, ")));
  EXPECT_EQ(second.files[1].padded, 1);
  spec.max_length = 2;
  spec.truncation = Truncation::error;
  EXPECT_EQ(read(spec).files, read_job_data({spec, encoder, nullptr, 100}, mistakes).files);
}

TEST_F(DatasetCaches, NoticeOtherBytesOfAFileEvenWithItsOldTime) {
  const DataSpec spec = spec_of(file("a.jsonl", chats(5, "b")));
  struct stat before{};
  ::stat(spec.train[0].path.c_str(), &before);
  read(spec);
  std::ofstream(spec.train[0].path) << chats(5, "c");  // as many bytes
  const timespec times[2] = {before.st_atim, before.st_mtim};
  ::utimensat(AT_FDCWD, spec.train[0].path.c_str(), times, 0);
  const JobData changed = read(spec);
  EXPECT_FALSE(changed.was_cached);
  EXPECT_THAT(changed.train.example(0).tokens, testing::Contains('c'));
}

TEST_F(DatasetCaches, AreFoundFromCopiesUnderOtherNamesWhichMessagesThenBear) {
  read(spec_of(file("a.jsonl", chats(5))));
  const DataSpec spec = spec_of(file("b.jsonl", chats(5)));
  const JobData data = read(spec);
  EXPECT_TRUE(data.was_cached);
  EXPECT_EQ(data.train.source(0), spec.train[0].path);
  EXPECT_EQ(data.files[0].file, spec.train[0].path);
}

TEST_F(DatasetCaches, ShareOneMappingBetweenJobsWithEqualData) {
  DatasetCache shared = cache();
  const DataSpec spec = spec_of(file("a.jsonl", chats(5)));
  const JobData first = read(shared, spec), second = read(shared, spec);
  EXPECT_EQ(first.train.tokens(3).data(), second.train.tokens(3).data());
}

TEST_F(DatasetCaches, KeyHoldsWhatExamplesDependOnAndNothingElse) {
  const ChatTemplate chat("{{ messages }}", "one", {{"eos_token", "</s>"}}), same("{{ messages }}", "two", {{"eos_token", "</s>"}}),
      other_eos("{{ messages }}", "one", {{"eos_token", "<e>"}}), other_source("{{ messages }} ", "one", {{"eos_token", "</s>"}});
  ExampleEncoder folding;
  folding.folds = true;
  DataSpec base;
  base.train = {{"a", 1}, {"b", 2}};
  base.max_length = 50;
  base.eval_fraction = 0.1;
  const std::vector<std::string> hashes = {"1", "2"};
  const auto key = [&](const DataSpec& spec) { return dataset_key({spec, encoder, &chat, 100}, hashes); };
  const auto with = [&](auto change) {
    DataSpec spec = base;
    change(spec);
    return key(spec);
  };
  std::set<std::string> keys = {key(base)};
  const auto expect_new = [&](const std::string& changed, const char* what) { EXPECT_TRUE(keys.insert(changed).second) << what; };
  expect_new(with([](DataSpec& spec) { spec.format = DataFormat::text; }), "format");
  expect_new(with([](DataSpec& spec) { spec.max_length = 49; }), "max_length");
  expect_new(with([](DataSpec& spec) { spec.truncation = Truncation::left; }), "truncation");
  expect_new(with([](DataSpec& spec) { spec.train_on_prompt = true; }), "train_on_prompt");
  expect_new(with([](DataSpec& spec) { spec.special_tokens = SpecialTokens::parsed; }), "special_tokens");
  expect_new(with([](DataSpec& spec) { spec.max_examples = 7; }), "max_examples");
  expect_new(with([](DataSpec& spec) { spec.eval_fraction = 0.1000001; }), "eval_fraction");
  expect_new(with([](DataSpec& spec) { spec.eval = "e"; }), "eval");
  expect_new(dataset_key({base, folding, &chat, 100}, hashes), "tokenizer");
  expect_new(dataset_key({base, encoder, &other_eos, 100}, hashes), "special tokens");
  expect_new(dataset_key({base, encoder, &other_source, 100}, hashes), "template");
  expect_new(dataset_key({base, encoder, nullptr, 100}, hashes), "no template");
  expect_new(dataset_key({base, encoder, &chat, 30}, hashes), "context length below max_length");
  expect_new(dataset_key({base, encoder, &chat, 100}, {"2", "1"}), "order of files");
  expect_new(dataset_key({base, encoder, &chat, 100}, {"1", "3"}), "bytes of a file");

  EXPECT_EQ(with([](DataSpec& spec) { spec.train = {{"c"}, {"d"}}; }), key(base)) << "names and weights";
  EXPECT_EQ(with([](DataSpec& spec) { spec.chat_template = "file"; }), key(base)) << "where the template is";
  EXPECT_EQ(dataset_key({base, encoder, &same, 100}, hashes), key(base)) << "the template's name";
  EXPECT_EQ(dataset_key({base, encoder, &chat, 400}, hashes), key(base)) << "a context length that cuts nothing";
  DataSpec uncut = base, uncut_left = base;
  uncut.max_length = uncut_left.max_length = 0;
  uncut_left.truncation = Truncation::left;
  EXPECT_EQ(dataset_key({uncut, encoder, &chat, 0}, hashes), dataset_key({uncut_left, encoder, &chat, 0}, hashes)) << "no limit";
}

/// Whoever changes what reading makes of equal files must raise reading_version, and then this.
TEST(DatasetKey, ChangesWithWhatReadingMakesOfEqualFiles) {
  const ChatTemplate chat("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}", "chatml", {});
  const TemporaryFolder folder;
  DataSpec spec;
  for (const auto& [name, line] : std::vector<std::pair<std::string, std::string>>{
           {"messages", R"({"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"a"}]})"},
           {"sharegpt", R"({"conversations":[{"from":"human","value":"q"},{"from":"gpt","value":"a\n\n"}]})"},
           {"completion", R"({"prompt":"Say: ","completion":"hi"})"},
           {"alpaca", R"({"instruction":"Add","input":"1 1","output":"2"})"},
           {"tokens", R"({"input_ids":[1,2,3],"labels":[-100,2,3]})"},
           {"text", R"({"text":")" + std::string(500, 'x') + R"("})"}}) {
    std::string lines;
    for (int i = 0; i < 4; ++i) lines += line + "\n";
    spec.train.push_back({folder.write(name, lines).string()});
  }
  spec.max_length = 400;
  spec.eval_fraction = 0.5;
  Diagnostics mistakes;
  const JobData data = read_job_data({spec, encoder, &chat, 0}, mistakes);
  EXPECT_THAT(mistakes.items(), IsEmpty()) << mistakes.items().front().to_string();
  EXPECT_EQ(std::to_string(reading_version) + " " + content_hash(data), "7 2218c2f00b8b5e9b8e75db654eef726b");
}

TEST_F(DatasetCaches, AreRebuiltWithANoticeWhereTheyAreDamaged) {
  const DataSpec spec = spec_of(file("a.jsonl", chats(50)));
  const JobData first = read(spec);
  const std::string whole = read_file(first.cache_file);
  for (const std::string& damaged : {whole.substr(0, whole.size() / 2), std::string("something else"), std::string(),
                                     whole.substr(0, dataset_header_bytes + 5) + "?" + whole.substr(dataset_header_bytes + 6)}) {
    notices.clear();
    own.write("copy", damaged);
    fs::rename(own.path() / "copy", first.cache_file);  // the mapped one stays what it is
    const JobData again = read(spec);
    EXPECT_FALSE(again.was_cached);
    expect_equal(first, again);
    ASSERT_EQ(notices.size(), 1u);
    EXPECT_THAT(notices[0], testing::StartsWith(first.cache_file));
    EXPECT_THAT(notices[0], HasSubstr("; the data are tokenized again"));
    EXPECT_TRUE(read(spec).was_cached);
  }
}

TEST_F(DatasetCaches, TakeNoSetUnderAnotherSetsName) {
  const JobData one = read(spec_of(file("a.jsonl", chats(50))));
  const DataSpec spec = spec_of(file("b.jsonl", chats(60)));
  const JobData other = read(spec);
  fs::copy_file(one.cache_file, other.cache_file, fs::copy_options::overwrite_existing);
  EXPECT_EQ(read(spec).train.size(), 60);
  EXPECT_THAT(notices, ElementsAre(HasSubstr("holds other data than its name says")));
}

TEST_F(DatasetCaches, KeepNothingWithMistakesAndTellThemAsEver) {
  const DataSpec spec = spec_of(file("a.jsonl", chats(300) + "{\n" + chats(300)));
  Diagnostics expected;
  const JobData memory = read_job_data({spec, encoder, nullptr, 100}, expected);
  const JobData data = read(spec);
  EXPECT_EQ(mistakes.items(), expected.items());
  expect_equal(memory, data);
  EXPECT_EQ(data.cache_file, "");
  EXPECT_TRUE(fs::is_empty(folder));
  DataSpec missing = spec_of(own.path() / "nothing.jsonl"), unreadable = spec_of(own.path());
  missing.train.push_back(spec.train[0]);
  for (const DataSpec& wrong : {missing, unreadable}) {
    Diagnostics as_ever;
    read_job_data({wrong, encoder, nullptr, 100}, as_ever);
    mistakes = {};
    read(wrong);
    EXPECT_EQ(mistakes.items(), as_ever.items());
  }
}

TEST_F(DatasetCaches, AreDoneWithoutWhereTheFolderCannotBeWritten) {
  const DataSpec spec = spec_of(file("a.jsonl", chats(50))), other = spec_of(file("b.jsonl", chats(60)));
  DatasetCache blocked(file("a file", "") / "cache", roomy, [this](const std::string& line) { notices.push_back(line); });
  EXPECT_EQ(read(blocked, spec).train.size(), 50);
  EXPECT_EQ(read(blocked, other).train.size(), 60);
  EXPECT_THAT(notices, ElementsAre(HasSubstr("cannot create: Not a directory: tokenized data are held in memory")));
  EXPECT_TRUE(mistakes.empty());
}

TEST_F(DatasetCaches, ForgetWhatWasNotUsedForLongest) {
  std::vector<DataSpec> specs;
  std::vector<std::string> files;
  for (int i = 0; i < 3; ++i) {
    specs.push_back(spec_of(file(std::to_string(i), chats(100 + i))));
    files.push_back(read(specs.back()).cache_file);
    set_age(files.back(), 1000 - i);
  }
  read(specs[0]);  // used now
  DatasetCache small = cache(3 * static_cast<int64_t>(fs::file_size(files[0])) + 1000);
  const std::string newest = read(small, spec_of(file("new", chats(100, "z")))).cache_file;
  EXPECT_THAT(sets(), testing::UnorderedElementsAre(newest, files[0], files[2]));
  DatasetCache tiny = cache(1);
  const JobData last = read(tiny, spec_of(file("last", chats(10))));
  EXPECT_THAT(sets(), ElementsAre(last.cache_file));
}

uint32_t mode_of(const fs::path& path) {
  struct stat status{};
  ::stat(path.c_str(), &status);
  return status.st_mode & 0777;
}

TEST_F(DatasetCaches, AreReadableByTheirOwnerAlone) {
  const fs::path open = file("a", chats(5));
  ::chmod(open.c_str(), 0644);  // and the folders above it may be closed to others
  EXPECT_EQ(mode_of(read(spec_of(open)).cache_file), 0600u);
  EXPECT_EQ(mode_of(folder), 0700u);
}

TEST_F(DatasetCaches, KeepWhatCannotBeOpenedAndDoWithoutIt) {
  const DataSpec spec = spec_of(file("a.jsonl", chats(50)));
  const fs::path set = read(spec).cache_file;
  fs::remove(set);
  fs::create_directory(set);
  DatasetCache shared = cache();
  for (int i = 0; i < 2; ++i) {
    const JobData data = read(shared, spec);
    EXPECT_EQ(data.train.size(), 50);
    EXPECT_FALSE(data.was_cached);
    EXPECT_EQ(data.cache_file, "");
  }
  EXPECT_TRUE(fs::is_directory(set));
  EXPECT_THAT(notices, ElementsAre(HasSubstr("is not a regular file: its data are tokenized again, and held in memory")));
}

TEST_F(DatasetCaches, GiveEachFileItsOwnReport) {
  const fs::path broken = own.path() / "broken.jsonl.gz";
  gzFile out = ::gzopen(broken.c_str(), "wb");
  const std::string lines = chats(3000);
  ::gzwrite(out, lines.data(), static_cast<unsigned>(lines.size()));
  ::gzclose(out);
  fs::resize_file(broken, fs::file_size(broken) / 2);
  DataSpec spec = spec_of(broken);
  spec.train.push_back({file("whole.jsonl", chats(60)).string()});
  const JobData memory = read_job_data({spec, encoder, nullptr, 100}, mistakes), cached = read(spec);
  EXPECT_EQ(memory.files, cached.files);
  ASSERT_EQ(cached.files.size(), 2u);
  EXPECT_EQ(cached.files[0].file, broken);
  EXPECT_EQ(cached.files[1].file, spec.train[1].path);
  EXPECT_EQ(cached.files[1].records, 60);
  EXPECT_FALSE(mistakes.empty());
}

TEST_F(DatasetCaches, AreWrittenBySeveralAtOnce) {
  const DataSpec spec = spec_of(file("a.jsonl", chats(3000)));
  std::vector<std::thread> threads;
  std::vector<JobData> data(6);
  std::vector<std::string> failures[6];
  for (size_t i = 0; i < data.size(); ++i) {
    threads.emplace_back([&, i] {
      DatasetCache mine(folder, roomy, [&failures, i](const std::string& line) { failures[i].push_back(line); });
      Diagnostics own_mistakes;
      data[i] = mine.read({spec, encoder, nullptr, 100}, own_mistakes, {.threads = 2});
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < data.size(); ++i) {
    EXPECT_THAT(failures[i], IsEmpty());
    expect_equal(data[0], data[i]);
  }
  EXPECT_EQ(sets().size(), 1u);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), fs::directory_iterator()), 1);
}

TEST_F(DatasetCaches, RemoveWhatKilledWritersLeft) {
  fs::create_directories(folder);
  const fs::path left = folder / (std::string(32, '0') + ".tokens.123.part"), foreign = folder / "notes.txt";
  std::ofstream(left) << "half";
  std::ofstream(foreign) << "mine";
  DatasetFileWriter writing(folder / (std::string(32, '1') + ".tokens"), 0600);  // still at it
  EXPECT_EQ(unfinished_sets(folder).count, 2);
  read(spec_of(file("a.jsonl", chats(5))));
  EXPECT_FALSE(fs::exists(left));
  EXPECT_TRUE(fs::exists(writing.temporary()));
  EXPECT_EQ(unfinished_sets(folder).count, 1);
  EXPECT_GT(clear_dataset_cache(folder), 0);
  EXPECT_THAT(sets(), IsEmpty());
  EXPECT_TRUE(fs::exists(foreign));
}

TEST_F(DatasetCaches, LeaveFilesOfOthersAlone) {
  read(spec_of(file("a.jsonl", chats(5))));
  const fs::path hashes = folder / "hashes";
  fs::create_directories(hashes);
  const std::string record = R"({"stamp":{"path":"/nowhere"},"hash":")" + std::string(32, 'a') + "\"}";
  const auto put = [&](const std::string& name, const std::string& text) {
    std::ofstream(hashes / name) << text;
    return hashes / name;
  };
  const std::vector<fs::path> foreign = {put("index.json", "{}"), put(std::string(32, '1') + ".json", "{\"mine\": 1}"),
                                         put(std::string(32, 'x') + ".json", record), put("notes.json.12.part", "")};
  const fs::path of_missing_file = put(std::string(32, '2') + ".json", record);
  DatasetCache tiny = cache(1);
  read(tiny, spec_of(file("b.jsonl", chats(6))));
  EXPECT_FALSE(fs::exists(of_missing_file));
  put(std::string(32, '2') + ".json", record);
  const fs::path left = put(std::string(32, '2') + ".json.12.part", "");
  clear_dataset_cache(folder);
  EXPECT_FALSE(fs::exists(of_missing_file));
  EXPECT_FALSE(fs::exists(left));
  for (const fs::path& file : foreign) EXPECT_TRUE(fs::exists(file)) << file;
}

TEST_F(DatasetCaches, AreListedWithWhatTheyWereMadeOf) {
  const fs::path data = file("a.jsonl", chats(5));
  read(spec_of(data));
  std::ofstream(folder / (std::string(32, '2') + ".tokens")) << "damaged";
  set_age(folder / (std::string(32, '2') + ".tokens"), 100);
  const std::vector<CachedSet> listed = cached_sets(folder);
  ASSERT_EQ(listed.size(), 2u);
  EXPECT_EQ(listed[0].examples, 5);
  EXPECT_EQ(listed[0].tokens, 20);
  EXPECT_THAT(listed[0].original_paths, ElementsAre(fs::canonical(data)));
  EXPECT_EQ(listed[0].damage, "");
  EXPECT_THAT(listed[1].damage, HasSubstr("is no file of tokenized data"));
  EXPECT_THAT(cached_sets(own.path() / "nowhere"), IsEmpty());
}

TEST(DataFileHash, IsKeptForLargeFilesWhileTheyAreWhatTheyWere) {
  const TemporaryFolder own;
  const fs::path data = own.write("a", "content"), folder = own.path() / "cache";
  const auto kept = [&] {
    std::error_code error;
    return std::distance(fs::directory_iterator(folder / "hashes", error), fs::directory_iterator());
  };
  EXPECT_EQ(hash_data_file(data, folder, 1).hash, checksum("content"));
  EXPECT_EQ(kept(), 0) << "it was changed just now";
  EXPECT_EQ(hash_data_file("/proc/self/exe", folder, 1).hash, checksum(read_file("/proc/self/exe")));
  EXPECT_EQ(kept(), 1);
  const fs::path entry = fs::directory_iterator(folder / "hashes")->path();
  EXPECT_EQ(mode_of(folder), 0700u);
  EXPECT_EQ(mode_of(folder / "hashes"), 0700u);
  EXPECT_EQ(mode_of(entry), 0600u);
  std::string text = read_file(entry);
  text.replace(text.find(checksum(read_file("/proc/self/exe"))), 32, std::string(32, '7'));
  write_file_atomically(entry, text);
  EXPECT_EQ(hash_data_file("/proc/self/exe", folder, 1).hash, std::string(32, '7')) << "it is not read again";
  EXPECT_NE(hash_data_file("/proc/self/exe", folder).hash, std::string(32, '7')) << "it is small";
  text.replace(text.find("\"bytes\":"), 8, "\"bytes\":1");
  write_file_atomically(entry, text);
  EXPECT_NE(hash_data_file("/proc/self/exe", folder, 1).hash, std::string(32, '7')) << "it has another size";
  forget_hash_of_missing_file(entry);
  EXPECT_EQ(kept(), 1);
  write_file_atomically(entry, R"({"stamp":{"path":"/nowhere"},"hash":")" + std::string(32, 'a') + "\"}");
  forget_hash_of_missing_file(entry);
  EXPECT_EQ(kept(), 0);
}

}  // namespace
}  // namespace cotune
