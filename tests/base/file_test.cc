#include "base/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>

#include "base/abrupt_exit.h"
#include "base/atomic_file.h"
#include "base/bus_error.h"
#include "base/diagnostics.h"
#include "base/error.h"
#include "base/running_checksum.h"

namespace cotune {
namespace {

std::filesystem::path scratch_folder() {
  auto folder = std::filesystem::temp_directory_path() / ("cotune-file-test-" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder);
  return folder;
}

TEST(File, WrittenBytesAreReadBackAndMapped) {
  const auto path = scratch_folder() / "a.bin";
  const std::string bytes("x\0y\n", 4);
  write_file_atomically(path, bytes);
  EXPECT_EQ(read_file(path), bytes);
  EXPECT_EQ(MappedFile(path).text(), bytes);
  write_file_atomically(path, "");
  EXPECT_EQ(MappedFile(path).text(), "");
}

TEST(File, OfAnySizeIsReadCopiedAndSummedInPieces) {
  for (const size_t size : {size_t{0}, size_t{1}, size_t{65536}, size_t{200001}}) {
    const auto path = scratch_folder() / "pieces.bin", copy = scratch_folder() / "copy.bin";
    std::string bytes(size, ' ');
    for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(i * 7 + i / 1000);
    write_file_atomically(path, bytes);
    std::string read;
    read_file_in_pieces(path, [&](std::string_view piece) {
      EXPECT_LE(piece.size(), 65536u);
      read.append(piece);
    });
    EXPECT_EQ(read, bytes);
    EXPECT_EQ(checksum_of_file(path), checksum(bytes));
    copy_file_atomically(path, copy);
    EXPECT_EQ(read_file(copy), bytes);
  }
  EXPECT_THROW(copy_file_atomically("/nonexistent/a", scratch_folder() / "b"), UserError);
  EXPECT_FALSE(std::filesystem::exists(scratch_folder() / "b"));
}

std::filesystem::perms permissions_of(const std::filesystem::path& path) { return std::filesystem::symlink_status(path).permissions(); }

TEST(File, ThatIsReplacedKeepsItsPermissions) {
  using std::filesystem::perms;
  const auto path = scratch_folder() / "private.txt", group = scratch_folder() / "group.txt";
  for (const auto& each : {path, group}) write_file_atomically(each, "old");
  constexpr perms owner = perms::owner_read | perms::owner_write, shared = owner | perms::group_read | perms::group_write;
  std::filesystem::permissions(path, owner);
  std::filesystem::permissions(group, shared);
  for (const auto& each : {path, group}) write_file_atomically(each, "new");
  EXPECT_EQ(permissions_of(path), owner);
  EXPECT_EQ(permissions_of(group), shared);
  AtomicFile stricter(group, 0600);
  stricter.append("newer");
  stricter.commit();
  EXPECT_EQ(permissions_of(group), owner);
  EXPECT_EQ(read_file(group), "newer");
}

TEST(File, IsWrittenWhereALinkLeadsWhenAskedForAndElseInItsPlace) {
  const auto folder = scratch_folder() / "links";
  std::filesystem::create_directories(folder / "elsewhere");
  const auto target = folder / "elsewhere/file.txt", link = folder / "link.txt", lost = folder / "lost.txt";
  write_file_atomically(target, "old");
  std::filesystem::create_symlink("elsewhere/file.txt", link);
  std::filesystem::create_symlink("nowhere", lost);
  EXPECT_EQ(where_link_leads(target), target);
  EXPECT_EQ(where_link_leads(lost), folder / "nowhere");
  std::filesystem::create_symlink("circle.txt", folder / "circle.txt");
  EXPECT_EQ(where_link_leads(folder / "circle.txt"), folder / "circle.txt");
  write_file_atomically(where_link_leads(link), "new");
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_EQ(read_file(target), "new");
  write_file_atomically(link, "own");
  EXPECT_FALSE(std::filesystem::is_symlink(link));
  EXPECT_EQ(read_file(target), "new");
}

TEST(File, OfWhichATemporaryIsLeftIsKnownByItsName) {
  const auto is_answer = [](const std::filesystem::path& path) { return path.extension() == ".jsonl"; };
  for (const char* name : {"a.jsonl.17.part", "a.jsonl.2.17.part"}) EXPECT_TRUE(is_temporary_of(name, is_answer)) << name;
  for (const char* name : {"a.jsonl", "a.jsonl.part", "a.json.17.part", "a.jsonl.x.17.part", "a.jsonl.17.parts"}) {
    EXPECT_FALSE(is_temporary_of(name, is_answer)) << name;
  }
}

TEST(File, AFailedWriteLeavesTheOldFileAndNoTemporary) {
  const auto folder = scratch_folder() / "occupied";
  std::filesystem::create_directories(folder / "target" / "child");  // a non-empty folder cannot be replaced by a file
  EXPECT_THROW(write_file_atomically(folder / "target", "new"), SystemError);
  int entries = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++entries;
  EXPECT_EQ(entries, 1);
}

TEST(File, AMissingFileIsTheUsersMistakeAndIsNamed) {
  try {
    MappedFile file("/nonexistent/model.safetensors");
    FAIL();
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("/nonexistent/model.safetensors"));
  }
}

TEST(File, AnEndlessOneIsRefused) { EXPECT_THROW(read_file("/dev/zero"), UserError); }

TEST(AtomicFile, IsWrittenBySeveralAtOnceAndTheLastToCommitWins) {
  const auto path = scratch_folder() / "shared.bin";
  AtomicFile one(path), other(path);
  EXPECT_NE(one.temporary(), other.temporary());
  EXPECT_TRUE(is_temporary_file(one.temporary()) && is_temporary_file(other.temporary()));
  one.append("one, in ");
  other.append("other");
  one.append("parts");
  one.overwrite(0, "ONE");
  EXPECT_FALSE(std::filesystem::exists(path));
  one.commit();
  EXPECT_EQ(read_file(path), "ONE, in parts");
  other.commit();
  EXPECT_EQ(read_file(path), "other");
}

TEST(AtomicFile, ThatIsBeingWrittenIsNotAbandoned) {
  const auto path = scratch_folder() / "unfinished.bin", left = scratch_folder() / "unfinished.bin.1.part";
  write_file_atomically(left, "of a process that was killed");
  AtomicFile file(path);
  EXPECT_FALSE(remove_abandoned(file.temporary()));
  EXPECT_TRUE(std::filesystem::exists(file.temporary()));
  EXPECT_TRUE(remove_abandoned(left));
  EXPECT_FALSE(std::filesystem::exists(left));
  EXPECT_FALSE(remove_abandoned(left));
}

TEST(AtomicFile, IsRemovedWhereAProgramEndsAtOnceAndOneThatIsWholeIsNot) {
  const auto path = scratch_folder() / "whole.bin", other = scratch_folder() / "half.bin";
  AtomicFile whole(path), half(other);
  whole.append("whole");
  whole.commit();
  remove_unfinished_files();
  EXPECT_FALSE(std::filesystem::exists(half.temporary()));
  EXPECT_EQ(read_file(path), "whole");
}

TEST(AtomicFile, TakesTheNameThatAKilledProcessOfItsNumberHas) {
  const auto path = scratch_folder() / "again.bin";
  const std::string left = path.string() + "." + std::to_string(::getpid()) + ".part";
  write_file_atomically(left, "half, and longer than what comes");
  AtomicFile file(path);
  EXPECT_EQ(file.temporary(), left);
  file.append("whole");
  file.commit();
  EXPECT_EQ(read_file(path), "whole");
}

TEST(RunningChecksum, IsThatOfTheWhole) {
  const std::string bytes(1000, 'x');
  for (const size_t piece : {1, 7, 240, 1000}) {
    RunningChecksum sum;
    for (size_t at = 0; at < bytes.size(); at += piece) sum.add(std::as_bytes(std::span(bytes)).subspan(at, std::min(piece, bytes.size() - at)));
    EXPECT_EQ(sum.text(), checksum(bytes));
  }
  EXPECT_EQ(RunningChecksum().text(), checksum(""));
}

TEST(File, TemporaryOnesOfAKilledProcessAreKnownByTheirNames) {
  EXPECT_TRUE(is_temporary_file("a/adapter_model.safetensors.123.part"));
  EXPECT_FALSE(is_temporary_file("a/adapter_model.part"));
  EXPECT_FALSE(is_temporary_file("a/adapter_model.x12.part"));
  EXPECT_FALSE(is_temporary_file("a/adapter_model.safetensors"));
}

TEST(FileDeathTest, TruncatedWhileItIsMappedIsNamed) {
  const auto path = scratch_folder() / "shrinks.bin";
  write_file_atomically(path, std::string(10000, 'x'));
  EXPECT_EXIT(
      {
        report_bus_errors();
        const MappedFile other(path);
        MappedFile file(path);
        const MappedFile moved(std::move(file));
        std::filesystem::resize_file(path, 0);
        const volatile char first = moved.text()[0];
        std::exit(first == 'x' ? 3 : 4);
      },
      ::testing::ExitedWithCode(1), "shrinks.bin: cannot be read any more");
}

TEST(FileDeathTest, WhatIsToBePutInOrderIsSoBeforeTheMessageOfATruncatedOne) {
  const auto path = scratch_folder() / "ends.bin";
  write_file_atomically(path, std::string(10000, 'x'));
  EXPECT_EXIT(
      {
        report_bus_errors();
        call_before_sudden_end([] { write_to_standard_error("in order; "); });
        const MappedFile file(path);
        std::filesystem::resize_file(path, 0);
        const volatile char first = file.text()[0];
        std::exit(first == 'x' ? 3 : 4);
      },
      ::testing::ExitedWithCode(1), "in order; .*ends.bin: cannot be read any more");
}

TEST(AbruptExitDeathTest, ABusErrorOfSomethingElseKillsAsEver) {
  EXPECT_EXIT(
      {
        report_bus_errors();
        call_before_sudden_end([] { write_to_standard_error("in order"); });
        std::raise(SIGBUS);
        std::exit(3);
      },
      ::testing::KilledBySignal(SIGBUS), "in order");
}

TEST(AbruptExitDeathTest, AStandardErrorThatHasGoneIsNoFailure) {
  EXPECT_EXIT(
      {
        ::close(STDERR_FILENO);
        write_to_standard_error("nobody");
        std::exit(0);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST(Diagnostics, AreReportedTogetherInLineOrder) {
  Diagnostics diagnostics;
  diagnostics.add("jobs.yaml", 14, "jobs[2].adapter.r", "must be between 1 and 512, got 0");
  diagnostics.add("jobs.yaml", 3, "model", "is required");
  try {
    diagnostics.throw_if_any();
    FAIL();
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(),
                 "jobs.yaml:3: model: is required\n"
                 "jobs.yaml:14: jobs[2].adapter.r: must be between 1 and 512, got 0");
  }
}

TEST(Diagnostics, SuggestTheNearestName) {
  EXPECT_EQ(nearest_name("lora_dropuot", {"dropout", "lora_dropout", "r"}), "lora_dropout");
  EXPECT_EQ(nearest_name("zzzzzz", {"dropout", "r"}), "");
}

}  // namespace
}  // namespace cotune
