#include "train/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <limits>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/file.h"
#include "train/small_run.h"

namespace cotune::testing {
namespace {

namespace fs = std::filesystem;

/// A folder for one test, removed at its end.
class Scratch {
 public:
  Scratch() : path(fs::temp_directory_path() / ("cotune-checkpoint-" + std::to_string(::getpid()))) {
    fs::remove_all(path);
    fs::create_directories(path);
  }
  ~Scratch() { fs::remove_all(path); }
  fs::path path;
};

std::unique_ptr<Adapter> small_adapter(double value) {
  AdapterSetup setup;
  setup.spec = small_job("job", AdapterMethod::lora, 1, 9).adapter;
  setup.device = test_device();
  for (int64_t layer = 0; layer < 2; ++layer) setup.modules.push_back({layer, Projection::q, 4, 8});
  std::unique_ptr<Adapter> adapter = make_adapter(small_config(), setup);
  for (Parameter& parameter : adapter->parameters()) parameter.value.fill_(value);
  adapter->refresh();
  return adapter;
}

double value_of(const Adapter& adapter) { return adapter.parameters().front().value.flatten()[0].item<double>(); }

/// What a folder's checkpoint holds: the value of its adapter and its loss.
std::pair<double, double> held_by(const fs::path& checkpoint) {
  const std::unique_ptr<Adapter> adapter = small_adapter(-1);
  const JobState state = load_checkpoint(checkpoint, *adapter);
  return {value_of(*adapter), state.last_loss};
}

JobState state_at(int64_t step, double loss, int64_t best_step = -1) {
  JobState state;
  state.step = step;
  state.last_loss = loss;
  state.best_step = best_step;
  return state;
}

/// The job can have saved any.
int64_t any_step() { return std::numeric_limits<int64_t>::max(); }

std::vector<std::string> step_folders(const fs::path& job) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(job)) {
    if (entry.path().filename().string().starts_with("step-")) names.push_back(entry.path().filename());
  }
  return names;
}

TEST(Checkpoint, AKillAtAnyInstantOfSavingLeavesACompleteOne) {
  const Scratch scratch;
  const fs::path job = scratch.path / "job", snapshots = scratch.path / "snapshots";
  struct Saving {
    int64_t step;
    double value;
    bool best;
  };
  // A new step, the same step again (as a resumed run does after an evaluation), marked best or not, and a later one.
  const std::vector<Saving> savings{{1, 1, true}, {2, 2, false}, {2, 3, false}, {2, 4, true}, {2, 5, true}, {3, 6, false}};
  double previous = 0, previous_best = 0;
  int64_t best_step = -1;
  for (const Saving& saving : savings) {
    int count = 0;
    fs::remove_all(snapshots);
    fs::create_directories(snapshots);
    file_change_watch() = [&] { fs::copy(job, snapshots / std::to_string(count++), fs::copy_options::recursive); };
    if (saving.best) best_step = saving.step;
    save_checkpoint(job, *small_adapter(saving.value), state_at(saving.step, saving.value, best_step), "base", saving.best);
    file_change_watch() = nullptr;
    EXPECT_GT(count, 20);
    bool moved = false;  // `latest` is the new one; from then on it stays
    for (int i = 0; i < count; ++i) {
      const fs::path left = snapshots / std::to_string(i);
      remove_leftovers(left, true, any_step);
      const auto latest = latest_checkpoint(left), best = best_checkpoint(left);
      // Before the first checkpoint is complete there is none; afterwards there always is one, the old or the new.
      if (previous > 0 || moved) {
        ASSERT_TRUE(latest.has_value()) << "instant " << i << " of step " << saving.step;
      }
      if (latest) {
        EXPECT_THAT(held_by(*latest), ::testing::AnyOf(std::pair(previous, previous), std::pair(saving.value, saving.value)));
        const bool is_new = held_by(*latest).first == saving.value;
        EXPECT_TRUE(is_new || !moved) << "instant " << i << " of step " << saving.step;
        moved = is_new;
      }
      if (best) {
        EXPECT_THAT(held_by(*best), ::testing::AnyOf(std::pair(previous_best, previous_best), std::pair(saving.value, saving.value)));
      }
      if (latest) {
        ASSERT_TRUE(best.has_value()) << "instant " << i << " of step " << saving.step;
        EXPECT_EQ(read_checkpoint_state(*best).step, read_checkpoint_state(*latest).best_step) << "instant " << i << " of step " << saving.step;
      }
      for (const auto& entry : fs::recursive_directory_iterator(left)) EXPECT_NE(entry.path().extension(), ".part");
      EXPECT_LE(step_folders(left).size(), 3u);
    }
    previous = saving.value;
    if (saving.best) previous_best = saving.value;
    EXPECT_EQ(held_by(latest_checkpoint(job).value()).first, previous);
    EXPECT_EQ(held_by(best_checkpoint(job).value()).first, previous_best);
  }
}

TEST(Checkpoint, ThatIsWithdrawnGivesWayToTheOneBefore) {
  const Scratch scratch;
  const fs::path job = scratch.path / "job";
  const auto save = [&](int64_t step, double value) {
    save_checkpoint(job, *small_adapter(value), state_at(step, value), "base", false);
  };
  save(1, 1);
  EXPECT_FALSE(withdraw_latest_checkpoint(job));  // nothing is before it
  EXPECT_EQ(held_by(latest_checkpoint(job).value()).first, 1);
  save(2, 2);
  save(2, 3);  // the same step again: what is before it stays
  EXPECT_TRUE(withdraw_latest_checkpoint(job));
  EXPECT_EQ(held_by(latest_checkpoint(job).value()).first, 1);
  EXPECT_FALSE(withdraw_latest_checkpoint(job));
  save(2, 4);
  save(3, 5);
  EXPECT_EQ(step_folders(job).size(), 2u);
  fs::remove_all(latest_checkpoint(job)->parent_path() / "step-2");  // by somebody who needs the space
  EXPECT_FALSE(withdraw_latest_checkpoint(job));
  EXPECT_EQ(held_by(latest_checkpoint(job).value()).first, 5);
  save(4, 6);
  EXPECT_EQ(step_folders(job).size(), 2u);
}

TEST(Checkpoint, ThatCannotBeWrittenLeavesTheOneBeforeAndNothingElse) {
  const Scratch scratch;
  const fs::path job = scratch.path / "job";
  save_checkpoint(job, *small_adapter(1), state_at(1, 1), "base", false);
  int change = 0;
  file_change_watch() = [&] {
    if (++change == 7) throw SystemError("no space left");  // after a file of the new folder
  };
  EXPECT_THROW(save_checkpoint(job, *small_adapter(2), state_at(2, 2), "base", false), SystemError);
  file_change_watch() = nullptr;
  EXPECT_THAT(step_folders(job), ::testing::ElementsAre("step-1"));
  EXPECT_EQ(held_by(latest_checkpoint(job).value()).first, 1);
}

/// Saves a best checkpoint of step 2 after one of step 1; the disk is full where that name is to be written.
void save_best_without_room_for(const fs::path& job, const std::string& name) {
  save_checkpoint(job, *small_adapter(1), state_at(1, 1, 1), "base", true);
  file_change_watch() = [&] {
    const auto is_of_name = [&](const fs::path& target) { return target == name; };
    for (const auto& entry : fs::directory_iterator(job)) {
      if (is_temporary_of(entry.path(), is_of_name) && entry.file_size() > 0) throw SystemError("no space left");
    }
  };
  EXPECT_THROW(save_checkpoint(job, *small_adapter(2), state_at(2, 2, 2), "base", true), SystemError);
  file_change_watch() = nullptr;
}

TEST(Checkpoint, ThatCannotBecomeTheLatestIsNotTheBestEither) {
  const Scratch scratch;
  const fs::path job = scratch.path / "job";
  save_best_without_room_for(job, "latest");
  EXPECT_EQ(held_by(best_checkpoint(job).value()).first, 1);
  remove_leftovers(job, true, any_step);
  EXPECT_THAT(step_folders(job), ::testing::ElementsAre("step-1"));
  EXPECT_EQ(held_by(latest_checkpoint(job).value()).first, 1);
  EXPECT_EQ(held_by(best_checkpoint(job).value()).first, 1);
}

TEST(Checkpoint, ThatBecameTheLatestAndNotTheBestIsTheBestOnResume) {
  const Scratch scratch;
  const fs::path job = scratch.path / "job";
  save_best_without_room_for(job, "best");
  EXPECT_EQ(held_by(latest_checkpoint(job).value()).first, 2);
  EXPECT_EQ(held_by(best_checkpoint(job).value()).first, 1);
  remove_leftovers(job, false, any_step);
  EXPECT_EQ(held_by(best_checkpoint(job).value()).first, 1) << "of a job that keeps none";
  const std::string good = read_file(job / "step-2" / "adapter_model.safetensors");
  write_file_atomically(job / "step-2" / "adapter_model.safetensors", "damaged");
  remove_leftovers(job, true, any_step);
  EXPECT_EQ(held_by(best_checkpoint(job).value()).first, 1) << "the newest is damaged";
  write_file_atomically(job / "step-2" / "adapter_model.safetensors", good);
  remove_leftovers(job, true, any_step);
  EXPECT_EQ(held_by(latest_checkpoint(job).value()).first, 2);
  EXPECT_EQ(held_by(best_checkpoint(job).value()).first, 2);
  // The first best of all: there is no such name yet.
  fs::remove(job / "best");
  remove_leftovers(job, true, any_step);
  EXPECT_EQ(held_by(best_checkpoint(job).value()).first, 2);
}

TEST(Checkpoint, WhoseNameOrChecksumsWereLostIsTheUsersToMend) {
  const Scratch scratch;
  save_checkpoint(scratch.path, *small_adapter(1), state_at(1, 0.5), "base", false);
  const fs::path checksums = scratch.path / "step-1" / "checksums.json";
  const std::string good = read_file(checksums);
  for (const char* bad : {"{}", "null", R"({"state.json": "0"})", "[]"}) {
    write_file_atomically(checksums, bad);
    EXPECT_THROW(held_by(scratch.path / "step-1"), UserError) << bad;
  }
  write_file_atomically(checksums, good);
  EXPECT_EQ(held_by(scratch.path / "step-1").first, 1);
  for (const char* bad : {"", "\n", "."}) {
    write_file_atomically(scratch.path / "latest", bad);
    EXPECT_THROW(latest_checkpoint(scratch.path), UserError) << bad;
  }
}

TEST(Checkpoint, ThatIsNamedAndMissingIsTheUsersToMend) {
  const Scratch scratch;
  const fs::path job = scratch.path / "job";
  save_checkpoint(job, *small_adapter(1), state_at(1, 1), "base", false);
  write_file_atomically(job / "latest", "step-7\n");
  EXPECT_THROW(latest_checkpoint(job), UserError);
  write_file_atomically(job / "latest", "../job/step-1\n");
  EXPECT_THROW(latest_checkpoint(job), UserError);
}

/// Somebody made room while the job trained: it is saved all the same.
TEST(Checkpoint, IsSavedWhereThoseBeforeWereRemoved) {
  const Scratch scratch;
  const fs::path job = scratch.path / "job";
  save_checkpoint(job, *small_adapter(1), state_at(1, 1), "base", true);
  save_checkpoint(job, *small_adapter(2), state_at(2, 2), "base", false);
  fs::remove_all(job / "step-1");
  fs::remove_all(job / "step-2");
  EXPECT_THROW(latest_checkpoint(job), UserError);
  EXPECT_THROW(check_checkpoints(job), UserError);
  EXPECT_EQ(latest_checkpoint_if_there(job), std::nullopt);
  EXPECT_THROW(remove_leftovers(job, true, any_step), UserError);
  save_checkpoint(job, *small_adapter(3), state_at(3, 3), "base", false);
  EXPECT_EQ(held_by(latest_checkpoint(job).value()).first, 3);
  fs::remove_all(job);
  save_checkpoint(job, *small_adapter(4), state_at(4, 4), "base", false);
  EXPECT_EQ(held_by(latest_checkpoint(job).value()).first, 4);
}

TEST(Checkpoint, OfAnotherNameOrALaterStepThanTheJobHasMadeIsNotRemoved) {
  const Scratch scratch;
  const fs::path job = scratch.path / "job";
  for (const int step : {1, 2, 3}) save_checkpoint(job, *small_adapter(step), state_at(step, step), "base", false);
  for (const char* name : {"step-4.keep", "step-", "step-01", "step-1x", "step-1.again.old", "step-1000", "step-5", "step-1.again", "step-2.again.again"}) {
    fs::create_directories(job / name);
  }
  write_file_atomically(job / "step-0", "a file");
  fs::create_directory_symlink(scratch.path, job / "step-1");
  const auto kept = {"step-3", "step-2", "step-4.keep", "step-", "step-01", "step-1x", "step-1.again.old", "step-1000", "step-0", "step-1"};
  int asked = 0;
  remove_leftovers(job, true, [&] { return ++asked, 7; });
  EXPECT_THAT(step_folders(job), ::testing::UnorderedElementsAreArray(kept)) << "of step 5 there is what a kill left of saving";
  EXPECT_EQ(asked, 1);
  save_checkpoint(job, *small_adapter(4), state_at(4, 4), "base", false);
  EXPECT_TRUE(fs::exists(job / "step-4.keep") && fs::exists(job / "step-1000"));
  EXPECT_FALSE(fs::exists(job / "step-2"));
}

TEST(Checkpoint, ThatIsLostOrDamagedGivesWayToTheNewestThatIsWhole) {
  const Scratch scratch;
  const fs::path job = scratch.path / "job";
  const std::string latest = (job / "latest").string(), begins_again = "`echo none > " + latest + "` begins the job again";
  for (const int step : {1, 2, 3}) save_checkpoint(job, *small_adapter(step), state_at(step, step, 1), "base", step == 1);
  const std::string one = (job / "step-1").string(), two = (job / "step-2").string(), three = (job / "step-3").string();
  fs::copy(job / "step-3", job / "step-9", fs::copy_options::recursive);  // no checkpoint of step 9
  const fs::path damaged = job / "step-3" / "optimizer.safetensors";
  fs::remove(latest);
  EXPECT_EQ(way_out_of_damage(job), "; " + three + ", " + two + ", " + one + " are whole: `echo step-3 > " + latest + "` goes on from the newest");
  write_file_atomically(damaged, "damaged");
  EXPECT_EQ(way_out_of_damage(job), "; " + two + ", " + one + " are whole: `cp " + (job / "previous").string() + " " + latest + "` goes on from the newest");
  fs::remove(job / "previous");
  EXPECT_EQ(way_out_of_damage(job), "; " + two + ", " + one + " are whole: `echo step-2 > " + latest + "` goes on from the newest");
  fs::remove_all(job / "step-1");
  fs::create_directories(latest);
  EXPECT_EQ(way_out_of_damage(job), "; " + two + " is whole: `rm -rf " + latest + " && echo step-2 > " + latest + "` goes on from it");
  fs::remove_all(job / "step-2");
  fs::remove_all(latest);
  EXPECT_EQ(way_out_of_damage(job), "; no other checkpoint of the job is whole: " + begins_again);
  fs::remove_all(job);
  EXPECT_EQ(way_out_of_damage(job), "; no other checkpoint of the job is whole: `mkdir -p " + job.string() + " && echo none > " + latest + "` begins the job again");
}

TEST(Checkpoint, OfAJobThatIsToBeginAgainIsNone) {
  const Scratch scratch;
  const fs::path job = scratch.path / "job";
  for (const int step : {1, 2, 3}) save_checkpoint(job, *small_adapter(step), state_at(step, step, 1), "base", step == 1);
  EXPECT_TRUE(has_checkpoint(job));
  write_file_atomically(job / "latest", "none\n");
  fs::remove_all(job / "step-1");  // which `best` names
  EXPECT_FALSE(has_checkpoint(job));
  EXPECT_EQ(latest_checkpoint(job), std::nullopt);
  check_checkpoints(job);
  remove_leftovers(job, true, [] { return 3; });
  EXPECT_THAT(step_folders(job), ::testing::ElementsAre());
  EXPECT_FALSE(fs::exists(job / "previous") || fs::exists(job / "best"));
  save_checkpoint(job, *small_adapter(5), state_at(1, 5), "base", false);
  EXPECT_EQ(held_by(latest_checkpoint(job).value()).first, 5);
}

}  // namespace
}  // namespace cotune::testing
