// SPDX-License-Identifier: Apache-2.0
// pytorch#5040, #5247, #1355, #2244: "Bus error" when /dev/shm is full (64 MB in Docker);
// pytorch#30225, mlcommons/storage#528: names in /dev/shm unlinked by RemoveIPC;
// cpython#82300: a resource tracker that unlinks names that others use; vllm#51579: SIGKILL leaks names.
// Our default has no names and does not use /dev/shm.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "conformance/scratch_directory.h"
#include "onecopy/share/share.h"
#include "onecopy/share/stats.h"
#include "share/format/process_name.h"
#include "support/child.h"
#include "support/footprint.h"
#include "support/limits.h"
#include "support/note.h"

namespace onecopy {
namespace {

using namespace testing;

constexpr std::int64_t kMiB = 1 << 20;

/// 128 MiB shared, filled, opened and read by a child, while /dev/shm is as it is.
void share_and_open() {
  const Tensor tensor = empty(Layout(DType::u8, {128 * kMiB}));
  std::memset(tensor.data(), 7, static_cast<std::size_t>(128 * kMiB));
  const Handle handle = share(tensor);
  JoinedChild borrower([text = handle.to_text()] {
    const Tensor mine = open(Handle::from_text(text));
    EXPECT_EQ(mine.as<unsigned char>()[128 * kMiB - 1], 7);
  });
}

/// Runs share_and_open() in a mount namespace that `arrange` has changed.
void with_mounts(std::string (*arrange)()) {
  Shared<Note> note;
  Child user([&] {
    std::string why = try_private_mounts();
    if (why.empty()) why = arrange();
    if (!why.empty()) return note->write(why);
    share_and_open();
  });
  EXPECT_EQ(user.join(), 0);
  if (note->step == 1) GTEST_SKIP() << note->read();
}

/// A full tmpfs at that directory. If none could be mounted, the directory is left alone.
std::string try_mount_full_tmpfs(const std::string& directory, const std::string& options) {
  if (std::string why = try_mount_tmpfs(directory, options); !why.empty()) return why;
  std::ofstream filler(directory + "/filler");
  const std::string kilobyte(1024, 'x');
  while (filler << kilobyte << std::flush) {
  }
  return {};
}

TEST(DevShm, MayBeFull) {
  with_mounts([] { return try_mount_full_tmpfs("/dev/shm", "size=1m"); });
}

TEST(DevShm, OfTheMachineIsNotFilledWhereNothingCanBeMounted) {
  const ScratchDirectory scratch;
  JoinedChild user([&] {
    const Limit mistake_is_fatal(RLIMIT_FSIZE, 1 << 20);
    EXPECT_NE(try_mount_full_tmpfs(scratch.path(), "size=no number"), "");
    EXPECT_EQ(count_files(scratch.path().c_str()), 0u);
  });
}

TEST(DevShm, MayBeAsSmallAsDockers) {
  with_mounts([] { return try_mount_tmpfs("/dev/shm", "size=64m"); });
}

TEST(DevShm, MayBeAbsent) {
  with_mounts([] {
    const std::string why = try_mount_tmpfs("/dev", "size=1m");
    return why.empty() && ::access("/dev/shm", F_OK) == 0 ? std::string("/dev/shm is still there") : why;
  });
}

/// Names in /dev/shm that say whose they are.
std::uint64_t names_of(const ProcessId& owner) {
  std::uint64_t names = 0;
  for (const auto& file : std::filesystem::directory_iterator("/dev/shm"))
    names += file.path().string().find(public_name(owner).substr(0, 8)) != std::string::npos;
  return names;
}

TEST(DevShm, HoldsNoNamesOfOursDuringUseOrAfterSigkill) {
  Shared<Note> note;
  Child owner([&] {
    const Tensor large = empty(Layout(DType::u8, {64 * kMiB}));
    const Tensor small = empty(Layout(DType::u8, {100}));
    note->write(share(large).to_text());
    note->reach(2);
    pause();
  });
  {
    const Tensor mine = open(Handle::from_text(note->read()));
    EXPECT_EQ(names_of(Handle::from_text(note->read()).fields().owner), 0u);
    note->step = 2;
    owner.kill();
    std::memset(mine.data(), 1, mine.nbytes());  // and it was not unmapped under us
  }
  EXPECT_EQ(names_of(Handle::from_text(note->read()).fields().owner), 0u);
  EXPECT_TRUE(eventually([] { return stats().foreign_segments == 0; }))
      << "the memory is the kernel's again";
}

}  // namespace
}  // namespace onecopy
