#include "schedule/profile.h"

#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "base/error.h"
#include "jobs/enum_names.h"
#include "schedule/profile_grid.h"
#include "schedule/verify_step_plan.h"

namespace cotune {
namespace {

Profile some_profile() {
  Profile profile;
  profile.fingerprint = {"a \"processor\"", "amx_bf16", "torch 2", "hidden 8", "bfloat16", 2, 1};
  profile.layer_count = 3;
  profile.process_bytes = 12345678901;
  profile.shapes = canonical_shapes(8192);
  profile.operators["swiglu"] = {{0, 3, 1.25e-5, 0.1, 7}, {5, 9, 0.1 + 0.2, 0, 1}};
  profile.operators["round"] = {{1, 1, 1e-9, 0.5, 7}};
  profile.collectives = {{CollectiveKind::message, 2, 64, 3.25e-5, 0.25, 6}, {CollectiveKind::reduce_scatter, 4, 1 << 22, 0.1 + 0.2, 0, 1}};
  return profile;
}

std::string failure(const std::string& json) {
  try {
    parse_profile(json, "profile.json");
  } catch (const UserError& error) {
    return error.what();
  }
  return "accepted";
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(Profile, ComesBackFromJsonAsItWas) {
  const Profile profile = some_profile();
  EXPECT_EQ(parse_profile(to_json(profile), "profile.json"), profile);
  EXPECT_EQ(to_json(parse_profile(to_json(profile), "profile.json")), to_json(profile));
}

TEST(Profile, IsRefusedWithPlaceFoundAndAccepted) {
  const std::string json = to_json(some_profile());
  EXPECT_TRUE(failure("{").starts_with("profile.json:1: column 2: not JSON: ")) << failure("{");
  EXPECT_EQ(failure("{}"), "profile.json: is not a profile: must be an object with `cotune_profile`, which `cotune profile` writes, got {}");
  EXPECT_EQ(failure(replaced(json, "\"cotune_profile\": 1", "\"cotune_profile\": 2")),
            "profile.json: profile.cotune_profile: must be 1, got 2");
  EXPECT_EQ(failure(replaced(json, "\"threads\": 2", "\"threads\": 0")),
            "profile.json: profile.fingerprint.threads: must be an integer from 1 to 9007199254740992, got 0");
  EXPECT_EQ(failure(replaced(json, "\"layer_count\": 3,", "")), "profile.json: profile.layer_count: is missing");
  EXPECT_EQ(failure(replaced(json, "\"median_s\": 1e-09", "\"median_s\": -1")),
            "profile.json: profile.operators.round[0].median_s: must be a number from 0 to 1e+09, got -1");
  EXPECT_EQ(failure(replaced(json, "\"shape\": 5", "\"shape\": 500")),
            "profile.json: profile.operators.swiglu[1].shape: must be the number of a shape, got 500");
  EXPECT_EQ(failure(replaced(json, "\"lora\"", "\"laro\"")),
            "profile.json: profile.shapes[0].jobs[0].method: must be one of lora, bottleneck, diff_pruning, got \"laro\"");
}

TEST(Profile, OlderThanCollectivesHasNone) {
  Profile profile = some_profile();
  std::string json = to_json(profile);
  const size_t begin = json.rfind(",\n \"collectives\"");
  ASSERT_NE(begin, std::string::npos);
  json = json.substr(0, begin) + "\n}\n";
  profile.collectives.clear();
  EXPECT_EQ(parse_profile(json, "profile.json"), profile);
}

TEST(Profile, WithDamagedCollectivesIsRefusedWithPlaceFoundAndAccepted) {
  const std::string json = to_json(some_profile());
  EXPECT_EQ(failure(replaced(json, "\"kind\": \"message\"", "\"kind\": \"massage\"")),
            "profile.json: profile.collectives[0].kind: must be one of message, all_reduce, reduce_scatter, all_gather, got \"massage\"");
  EXPECT_EQ(failure(replaced(json, "\"ranks\": 4,", "\"ranks\": 1,")),
            "profile.json: profile.collectives[1].ranks: must be an integer from 2 to 1048576, got 1");
  EXPECT_EQ(failure(replaced(json, "\"reduce_scatter\"", "\"message\"")),
            "profile.json: profile.collectives[1].ranks: must be 2 for a message, got 4");
  EXPECT_EQ(failure(replaced(json, "\"bytes\": 64", "\"bytes\": 0")),
            "profile.json: profile.collectives[0].bytes: must be an integer from 1 to 9007199254740992, got 0");
  EXPECT_EQ(failure(replaced(json, "\"median_s\": 3.25e-05", "\"median_s\": null")),
            "profile.json: profile.collectives[0].median_s: must be a number from 0 to 1e+09, got null");
  EXPECT_EQ(failure(replaced(json, "\"spread\": 0.25,", "")), "profile.json: profile.collectives[0].spread: is missing");
  const size_t begin = json.rfind("\"collectives\":");
  EXPECT_EQ(failure(json.substr(0, begin) + "\"collectives\": 7}"), "profile.json: profile.collectives: must be a list, got 7");
}

TEST(ProfiledCollectives, AreOfEqualGroupsAndOfPairs) {
  EXPECT_TRUE(measured_group_sizes(1).empty());
  EXPECT_EQ(measured_group_sizes(2), (std::vector<int64_t>{2}));
  EXPECT_EQ(measured_group_sizes(5), (std::vector<int64_t>{2, 5}));
  EXPECT_EQ(measured_group_sizes(12), (std::vector<int64_t>{2, 3, 4, 6, 12}));
}

TEST(ProfiledCollectives, ReachFromSmallSizesToThatOfTheLargestMicrobatch) {
  EXPECT_EQ(measured_sizes(5000), (std::vector<int64_t>{64, 512, 4096, 5000}));
  EXPECT_EQ(measured_sizes(512), (std::vector<int64_t>{64, 512}));
  EXPECT_EQ(measured_sizes(20), (std::vector<int64_t>{20}));
  const ModelConfig config = model_preset("smollm2-135m");
  EXPECT_EQ(most_tokens(config, {{{{AdapterMethod::lora, 4, 0, 0, {Projection::v}, {700, 30}}}, 1, 512},
                                 {{{AdapterMethod::lora, 4, 0, 0, {Projection::v}, {90}}}}}),
            474) << "the last two atoms of the row of 700, and that of 30";
}

TEST(Profile, OfOtherConditionsIsRefusedWithWhatDiffers) {
  const Profile profile = some_profile();
  ProfileFingerprint here = profile.fingerprint;
  EXPECT_NO_THROW(check_fingerprint(profile, here, "profile.json"));
  here.threads = 4;
  here.dtype = "float32";
  here.ranks = 2;
  try {
    check_fingerprint(profile, here, "profile.json");
    FAIL();
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(),
                 "profile.json: was measured under other conditions; `cotune profile` makes one for these:\n"
                 "  dtype: the profile has bfloat16, here it is float32\n"
                 "  threads: the profile has 2, here it is 4\n"
                 "  ranks: the profile has 1, here it is 2");
  }
}

TEST(Profile, OfAnyOtherConditionIsRefusedAndSaysWhich) {
  const Profile profile = some_profile();
  struct Change {
    const char* line;
    void (*make)(ProfileFingerprint&);
  };
  const std::vector<Change> changes{
      {"device: the profile has a \"processor\", here it is another", [](ProfileFingerprint& here) { here.device = "another"; }},
      {"kernels: the profile has amx_bf16, here it is avx2", [](ProfileFingerprint& here) { here.kernels = "avx2"; }},
      {"libraries: the profile has torch 2, here it is torch 3", [](ProfileFingerprint& here) { here.libraries = "torch 3"; }},
      {"model: the profile has hidden 8, here it is hidden 9", [](ProfileFingerprint& here) { here.model = "hidden 9"; }},
      {"dtype: the profile has bfloat16, here it is float32", [](ProfileFingerprint& here) { here.dtype = "float32"; }},
      {"threads: the profile has 2, here it is 3", [](ProfileFingerprint& here) { here.threads = 3; }},
      {"ranks: the profile has 1, here it is 2", [](ProfileFingerprint& here) { here.ranks = 2; }},
      {"tensor_parallel: the profile has 1, here it is 4", [](ProfileFingerprint& here) { here.tensor_parallel = 4; }}};
  ProfileFingerprint all_other = profile.fingerprint;
  for (const Change& change : changes) {
    ProfileFingerprint here = profile.fingerprint;
    change.make(here);
    change.make(all_other);
    EXPECT_EQ(differences(profile.fingerprint, here), std::vector<std::string>{change.line});
    EXPECT_THROW(check_fingerprint(profile, here, "profile.json"), UserError) << change.line;
  }
  EXPECT_EQ(differences(profile.fingerprint, all_other).size(), changes.size());
  // A field that is not among these does not compile here.
  const auto& [device, kernels, libraries, model, dtype, threads, ranks, tensor_parallel] = profile.fingerprint;
  EXPECT_EQ((ProfileFingerprint{device, kernels, libraries, model, dtype, threads, ranks, tensor_parallel}), profile.fingerprint);
}

TEST(Profile, ShapesMeasureEveryMethod) {
  std::set<AdapterMethod> measured;
  for (const ProfiledShape& shape : canonical_shapes(8192)) {
    for (const ProfiledJob& job : shape.jobs) measured.insert(job.method);
  }
  EXPECT_EQ(measured.size(), enum_names<AdapterMethod>.size()) << "a method without shapes in profile_grid.cc is never measured";
}

TEST(Profile, ShapesAreStepsThatVerify) {
  for (const int64_t context : {8192, 100}) {
    ModelConfig config = model_preset("smollm2-135m");
    config.layer_count = 2;
    for (const ProfiledShape& shape : canonical_shapes(context)) {
      const PlannedStep step = planned_step(config, shape);
      verify(step.plan, config.layer_count);
      int64_t labelled = 0, expected = 0;
      for (const int64_t rows : step.labelled) labelled += rows;
      for (const ProfiledJob& job : shape.jobs) {
        for (const int64_t length : job.row_lengths) {
          EXPECT_LE(length, context);
          expected += length - first_target(length, shape.labelled_share);
        }
      }
      EXPECT_EQ(labelled, expected);
    }
  }
}

TEST(StepOperators, AreTheListsInTheOrderOfTheActions) {
  ModelConfig config = model_preset("smollm2-135m");
  config.layer_count = 4;
  PlannedStep step = planned_step(config, {{{AdapterMethod::lora, 4, 0, 0, {Projection::v}, {700, 30}}}, 1, 256});
  const auto names = [&](const PlannedStep& planned) {
    std::map<std::string, int> counts;
    const StepOperators operators(config, planned);
    for (const Action& action : planned.plan.actions) {
      for (const Operator* op : operators.of(action)) ++counts[op->name()];
    }
    return counts;
  };
  const std::map<std::string, int> kept = names(step);
  EXPECT_EQ(kept.at("layers.2.attention"), 3);
  EXPECT_EQ(kept.at("head"), 3);
  PackingPolicy policy = step.plan.policy;
  policy.recompute = true;
  step.plan = plan_step(step.plan.batches, policy);
  const std::map<std::string, int> recomputed = names(step);
  EXPECT_EQ(recomputed.at("layers.2.attention"), 6);
  EXPECT_EQ(recomputed.at("layers.2.down_proj"), 3) << "its output is not needed again";
  EXPECT_EQ(recomputed.at("layers.2.attention_backward"), 3);
}

}  // namespace
}  // namespace cotune
