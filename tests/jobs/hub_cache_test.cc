#include "jobs/hub_cache.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "base/error.h"
#include "formats/temporary_folder.h"

namespace cotune {
namespace {

namespace fs = std::filesystem;

const std::string commit(40, 'a');

class HubCache : public ::testing::Test {
 protected:
  void add_repository(const std::string& folder, const std::string& reference) {
    fs::create_directories(cache / folder / "snapshots" / commit);
    const fs::path file = cache / folder / "refs" / reference;
    fs::create_directories(file.parent_path());
    std::ofstream(file) << commit;
  }

  TemporaryFolder folder;
  fs::path cache = folder.path() / "hub";
};

TEST(HubName, FollowsTheHubsRules) {
  EXPECT_EQ(parse_hub_name("HuggingFaceTB/SmolLM2-135M-Instruct"), (HubName{"HuggingFaceTB/SmolLM2-135M-Instruct", "main"}));
  EXPECT_EQ(parse_hub_name("gpt2@v1.0"), (HubName{"gpt2", "v1.0"}));
  EXPECT_EQ(parse_hub_name("a/b@refs/pr/1"), (HubName{"a/b", "refs/pr/1"}));
  EXPECT_EQ(parse_hub_name("a/b-GGUF/c.gguf"), (HubName{"a/b-GGUF", "main", "c.gguf"}));
  EXPECT_EQ(parse_hub_name("a/b/Q4--K/c d.gguf@v1"), (HubName{"a/b", "v1", "Q4--K/c d.gguf"}));
  for (const char* text : {"a/b/c.bin", "a/b/../c.gguf", "a/b//c.gguf", "a/b/c.gguf/", "a/b/c\n.gguf", "/a/b/c.gguf", "./a/b/c.gguf", "", "/a/b",
                           "a/b/c", "./a", "../a", "a/", "-a/b", "a/b.", "a--b", "a..b", "a/b.git", "a/b@", "a@/b", "a/b@../c", "a b", "a/\xC3\xA9"}) {
    EXPECT_FALSE(parse_hub_name(text)) << text;
  }
  EXPECT_FALSE(parse_hub_name(std::string(97, 'a')));
}

TEST_F(HubCache, FindsBranchesTagsAndCommits) {
  add_repository("models--org--name", "main");
  add_repository("models--org--name", "refs/pr/1");
  const fs::path snapshot = cache / "models--org--name" / "snapshots" / commit;
  EXPECT_EQ(find_in_hub_cache({"org/name", "main"}, cache), snapshot);
  EXPECT_EQ(find_in_hub_cache({"org/name", "refs/pr/1"}, cache), snapshot);
  EXPECT_EQ(find_in_hub_cache({"org/name", commit}, cache), snapshot);
  EXPECT_FALSE(find_in_hub_cache({"org/name", "other"}, cache));
  EXPECT_FALSE(find_in_hub_cache({"org/name", std::string(40, 'b')}, cache));
  EXPECT_FALSE(find_in_hub_cache({"org/other", "main"}, cache));
  EXPECT_EQ(hub_name_of(snapshot), (HubName{"org/name", commit}));
  EXPECT_EQ(hub_name_of(snapshot / ""), (HubName{"org/name", commit}));
  EXPECT_FALSE(hub_name_of(folder.path()));
}

TEST_F(HubCache, SaysWhereItLookedAndWhatFetchesTheModel) {
  add_repository("models--org--name", "main");
  EXPECT_EQ(hub_cache_complaint({"org/name", "v2"}, cache),
            "it is not in the Hugging Face cache either (" + (cache / "models--org--name").string() +
                " holds no revision v2); `hf download org/name --revision v2` fetches it");
  EXPECT_EQ(hub_cache_complaint({"gpt2", "main"}, cache),
            "it is not in the Hugging Face cache either (" + (cache / "models--gpt2").string() +
                " does not exist); `hf download gpt2` fetches it");
}

TEST_F(HubCache, FindsAGgufFileByTheRepositorysNameAndByItsOwn) {
  add_repository("models--org--name", "main");
  const fs::path snapshot = cache / "models--org--name" / "snapshots" / commit;
  const HubName name{"org/name"};
  EXPECT_EQ(model_in_snapshot(snapshot, name), snapshot);
  std::ofstream(snapshot / "README.md") << "x";
  fs::create_directories(snapshot / "q4");
  std::ofstream(snapshot / "q4/a.gguf") << "x";
  fs::create_symlink("nowhere", snapshot / "gone.gguf");
  EXPECT_EQ(model_in_snapshot(snapshot, name), snapshot / "q4/a.gguf");
  EXPECT_EQ(model_path(snapshot), snapshot / "q4/a.gguf");
  EXPECT_EQ(find_in_hub_cache({"org/name", "main", "q4/a.gguf"}, cache), snapshot / "q4/a.gguf");
  EXPECT_EQ(hub_name_of(snapshot / "q4/a.gguf"), (HubName{"org/name", commit, "q4/a.gguf"}));
  EXPECT_FALSE(hub_name_of(folder.path() / "a.gguf"));
  for (const char* file : {"gone.gguf", "b.gguf", "q4"}) EXPECT_FALSE(find_in_hub_cache({"org/name", "main", file}, cache)) << file;
  EXPECT_EQ(hub_cache_complaint({"org/name", "main", "b.gguf"}, cache),
            "it is not in the Hugging Face cache either (" + (cache / "models--org--name").string() +
                " holds no b.gguf of revision main); `hf download org/name b.gguf` fetches it");
  const auto model = [&] { return model_in_snapshot(snapshot, {"org/name"}); };
  EXPECT_EQ(model(), snapshot / "q4/a.gguf");
  fs::rename(snapshot / "q4/a.gguf", snapshot / "q4/a-00001-of-00002.gguf");
  std::ofstream(snapshot / "q4/a-00002-of-00002.gguf") << "x";
  EXPECT_EQ(model(), snapshot / "q4/a-00001-of-00002.gguf") << "of parts the first";
  fs::remove(snapshot / "q4/a-00002-of-00002.gguf");
  fs::rename(snapshot / "q4/a-00001-of-00002.gguf", snapshot / "q4/a.gguf");
  std::ofstream(snapshot / "b.gguf") << "x";
  try {
    model_in_snapshot(snapshot, {"org/name", "v2"});
    ADD_FAILURE() << "one of several was taken";
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(), "org/name@v2: holds 2 GGUF files: b.gguf, q4/a.gguf; name one of them, such as org/name/b.gguf@v2");
  }
  fs::remove(snapshot / "b.gguf");
  std::ofstream(snapshot / "config.json") << "x";
  EXPECT_EQ(model_in_snapshot(snapshot, name), snapshot / "q4/a.gguf") << "a configuration beside it is no model";
  std::ofstream(snapshot / "model.safetensors") << "x";
  EXPECT_EQ(model_in_snapshot(snapshot, name), snapshot);
}

TEST(HubDownload, NamesTheFileInAShellsWords) {
  EXPECT_EQ(hub_download_command({"a/b", "main", "c.gguf"}), "hf download a/b c.gguf");
  EXPECT_EQ(hub_download_command({"a/b", "v1", "it's/c d.gguf"}), "hf download a/b 'it'\\''s/c d.gguf' --revision v1");
  EXPECT_EQ(hub_download_command({"a/b-GGUF", "v1"}), "hf download a/b-GGUF FILE.gguf --revision v1");
}

TEST_F(HubCache, AReferenceThatLeadsElsewhereIsNone) {
  add_repository("models--org--name", "main");
  for (const char* text : {"../../elsewhere", "..", "", "\n"}) {
    std::ofstream(cache / "models--org--name/refs/main") << text;
    EXPECT_FALSE(find_in_hub_cache({"org/name", "main"}, cache)) << text;
  }
}

TEST_F(HubCache, TheEnvironmentSaysWhereItIs) {
  const std::map<std::string, std::string> before = [] {
    std::map<std::string, std::string> values;
    for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "HOME"}) {
      if (const char* value = std::getenv(name)) values[name] = value;
      unsetenv(name);
    }
    return values;
  }();
  setenv("HOME", "/people/x", 1);
  EXPECT_EQ(hub_cache_folder(), "/people/x/.cache/huggingface/hub");
  setenv("XDG_CACHE_HOME", "/caches", 1);
  EXPECT_EQ(hub_cache_folder(), "/caches/huggingface/hub");
  setenv("HF_HOME", "~/hf", 1);
  EXPECT_EQ(hub_cache_folder(), "/people/x/hf/hub");
  setenv("HUGGINGFACE_HUB_CACHE", "/old", 1);
  EXPECT_EQ(hub_cache_folder(), "/old");
  setenv("HF_HUB_CACHE", "${XDG_CACHE_HOME}/$NONE/new", 1);
  EXPECT_EQ(hub_cache_folder(), "/caches/$NONE/new");
  for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "HOME"}) unsetenv(name);
  for (const auto& [name, value] : before) setenv(name.c_str(), value.c_str(), 1);
}

}  // namespace
}  // namespace cotune
