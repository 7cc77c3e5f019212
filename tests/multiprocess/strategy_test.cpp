// SPDX-License-Identifier: Apache-2.0
// Both strategies through the whole path of sharing, and the files that file_system leaves in its directory.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "conformance/scratch_directory.h"
#include "device/janitor.h"
#include "onecopy/share/bundle.h"
#include "onecopy/share/share.h"
#include "onecopy/share/stats.h"
#include "support/child.h"
#include "support/eventually.h"
#include "support/footprint.h"
#include "support/limits.h"
#include "support/note.h"
#include "support/peer_group.h"
#include "support/refusal.h"

namespace onecopy {
namespace {

using testing::Body;
using testing::Child;
using testing::count_files;
using testing::eventually;
using testing::expect_refusal;
using testing::expect_soon;
using testing::Footprint;
using testing::Form;
using testing::JoinedChild;
using testing::Note;
using testing::Role;
using testing::run_peers;
using testing::Shared;
using testing::try_mount_tmpfs;
using testing::try_private_mounts;

constexpr std::int64_t kMiB = 1 << 20;

Tensor bytes_with(std::int64_t count, unsigned char value) {
  Tensor tensor = empty(Layout(DType::u8, {count}));
  std::memset(tensor.data(), value, static_cast<std::size_t>(count));
  return tensor;
}

int last_byte(const Tensor& tensor) { return tensor.as<unsigned char>()[tensor.nbytes() - 1]; }

/// A directory of its own for named files.
class WithDirectory : public ::testing::Test {
 protected:
  WithDirectory() { ::setenv("ONECOPY_SHM_DIR", directory_.path().c_str(), 1); }
  ~WithDirectory() override { ::unsetenv("ONECOPY_SHM_DIR"); }
  std::uint64_t files() const { return count_files(directory_.path().c_str()); }

  ScratchDirectory directory_;
  Shared<Note> note_;
};

class EveryStrategy : public WithDirectory, public ::testing::WithParamInterface<Strategy> {
 protected:
  EveryStrategy() { set_strategy(GetParam()); }
  ~EveryStrategy() override { set_strategy(Strategy::file_descriptor); }
  /// The resources of a process when it was killed.
  void leave_a_large_tensor() {
    Child victim([&] {
      const Tensor large = bytes_with(40 * kMiB, 2);
      note_->step = 1;
      pause();
    });
    note_->reach(1);
    victim.kill();
  }
  static std::uint64_t names(std::uint64_t segments) {
    return GetParam() == Strategy::file_system ? segments : 0;
  }
};
INSTANTIATE_TEST_SUITE_P(Strategies, EveryStrategy,
                         ::testing::Values(Strategy::file_descriptor, Strategy::file_system),
                         [](const auto& strategy) {
                           return strategy.param == Strategy::file_system ? "FileSystem" : "FileDescriptor";
                         });

TEST_P(EveryStrategy, LendsForReadingAndWriting) {
  Child owner([&] {
    const Tensor small = bytes_with(1000, 1);
    const Tensor large = bytes_with(40 * kMiB, 2);
    EXPECT_EQ(files(), names(2));
    note_->write(share(small).to_text());
    note_->reach(2);
    note_->write(share(large).to_text(), 3);
    note_->reach(4);
    EXPECT_EQ(last_byte(small), 11);
    EXPECT_EQ(last_byte(large), 12);
  });
  Child borrower([&] {
    const Tensor small = open(Handle::from_text(note_->read(1)));
    note_->step = 2;
    const Tensor large = open(Handle::from_text(note_->read(3)));
    EXPECT_EQ(last_byte(small), 1);
    EXPECT_EQ(last_byte(large), 2);
    small.as<unsigned char>()[999] = 11;
    large.as<unsigned char>()[40 * kMiB - 1] = 12;
    EXPECT_EQ(last_byte(open(Handle::from_text(note_->read(3)), Access::read_only)), 12);
    note_->step = 4;
  });
  EXPECT_EQ(borrower.join(), 0);
  EXPECT_EQ(owner.join(), 0);
  EXPECT_EQ(remove_abandoned_files().in_use, 0u);
  EXPECT_EQ(files(), 0u);
}

TEST_P(EveryStrategy, ReadOnlyMemoryCannotBeWritten) {
  const Tensor tensor = bytes_with(1000, 1);
  const Handle handle = share(tensor);
  Child borrower([text = handle.to_text()] {
    std::signal(SIGSEGV, SIG_DFL);  // a sanitizer's handler would exit instead
    open(Handle::from_text(text), Access::read_only).as<unsigned char>()[0] = 9;
  });
  EXPECT_EQ(borrower.join(), -SIGSEGV);
  EXPECT_EQ(tensor.as<unsigned char>()[0], 1);
}

TEST_P(EveryStrategy, MemoryOutlivesItsOwnerAndIsPassedOn) {
  Shared<Note> on;
  Child owner([&] {
    const Tensor tensor = bytes_with(1000, 7);
    note_->write(share(tensor).to_text());
    pause();
  });
  Child middle([&] {
    const Tensor tensor = open(Handle::from_text(note_->read(1)));
    note_->step = 2;
    note_->reach(3);
    on->write(share(tensor).to_text());
    note_->reach(4);
    EXPECT_EQ(last_byte(tensor), 8);
  });
  note_->reach(2);
  owner.kill();
  remove_abandoned_files();  // must leave what the borrower has
  note_->step = 3;
  Child last([&] {
    const Tensor tensor = open(Handle::from_text(on->read()));
    EXPECT_EQ(last_byte(tensor), 7);
    tensor.as<unsigned char>()[999] = 8;
  });
  EXPECT_EQ(last.join(), 0);
  note_->step = 4;
  EXPECT_EQ(middle.join(), 0);
  remove_abandoned_files();
  EXPECT_EQ(files(), 0u);
}

TEST_P(EveryStrategy, ABundleMayMixBoth) {
  Child owner([&] {
    std::vector<NamedTensor> tensors;
    for (int i = 0; i < 10; ++i) {
      set_strategy(i % 2 ? Strategy::file_system : Strategy::file_descriptor);
      tensors.emplace_back(std::to_string(i), bytes_with(100, static_cast<unsigned char>(i)));
    }
    set_strategy(GetParam());
    const Handle handle = share_bundle(tensors);
    note_->write(handle.to_text());
    note_->reach(2);
  });
  const Bundle bundle = Bundle::open(Handle::from_text(note_->read(1)));
  for (std::size_t i = 0; i < bundle.size(); ++i)
    EXPECT_EQ(last_byte(bundle.tensor(i)), static_cast<int>(i));
  note_->step = 2;
  EXPECT_EQ(owner.join(), 0);
}

TEST_P(EveryStrategy, ExitingLeavesNoName) {
  JoinedChild owner([&] {
    Child user([&] {  // which exits as programs do
      {
        const Tensor small = bytes_with(1000, 1);
        const Tensor large = bytes_with(40 * kMiB, 2);
        share(small);
        EXPECT_EQ(files(), names(2));
      }
      std::exit(::testing::Test::HasFailure() ? 1 : 0);
    });
    EXPECT_EQ(user.join(), 0);
    EXPECT_EQ(files(), 0u);
  });
}

const Body starting("strategy.starting", [](Role&) { stats(); });  // any first use

TEST_P(EveryStrategy, WhatAKilledProcessLeftTheNextOneRemovesAtItsStart) {
  Child victim([&] {
    const Tensor small = bytes_with(1000, 1);
    const Tensor large = bytes_with(40 * kMiB, 2);
    note_->step = 1;
    pause();
  });
  note_->reach(1);
  EXPECT_EQ(files(), names(2));
  EXPECT_EQ(remove_abandoned_files().in_use, names(2));
  victim.kill();
  EXPECT_EQ(files(), names(2));
  run_peers(Form::spawned, {{"next", &starting}});
  EXPECT_EQ(files(), 0u);
}

const Body opening("strategy.opening", [](Role&) {  // its first use
  const Tensor tensor = open(Handle::from_text(std::getenv("ONECOPY_TEST_HANDLE")));
  EXPECT_TRUE(eventually([] { return count_files(std::getenv("ONECOPY_SHM_DIR")) == 0; }));
});

TEST_P(EveryStrategy, OneThatBeginsByOpeningRemovesItSoon) {
  set_strategy(Strategy::file_descriptor);
  const Tensor tensor = bytes_with(1000, 1);
  const std::string handle = share(tensor).to_text();
  set_strategy(GetParam());
  leave_a_large_tensor();
  EXPECT_EQ(files(), names(1));
  ::setenv("ONECOPY_TEST_HANDLE", handle.c_str(), 1);
  run_peers(Form::spawned, {{"opener", &opening}});
  ::unsetenv("ONECOPY_TEST_HANDLE");
  EXPECT_EQ(files(), 0u);
}

TEST_P(EveryStrategy, RemoveAbandonedFilesSaysWhatItDid) {
  leave_a_large_tensor();
  const CleanupReport report = remove_abandoned_files();
  EXPECT_EQ(report.files, names(1));
  EXPECT_EQ(report.bytes, names(1) * 40 * kMiB);
  EXPECT_EQ(report.in_use, 0u);
  EXPECT_EQ(files(), 0u);
}

/// Containers that share a directory and no network namespace: sockets with paths.
class RuntimeDirectory : public ::testing::Test {
 protected:
  RuntimeDirectory() {
    std::filesystem::permissions(directory_.path(), std::filesystem::perms::owner_all);
    ::setenv("ONECOPY_RUNTIME_DIR", directory_.path().c_str(), 1);
  }
  ~RuntimeDirectory() override { ::unsetenv("ONECOPY_RUNTIME_DIR"); }

  ScratchDirectory directory_;
  Shared<Note> note_;
};

TEST_F(RuntimeDirectory, HoldsTheSocketsWhileTheyAreUsed) {
  JoinedChild owner([&] {
    Child user([&] {
      const Tensor tensor = bytes_with(1000, 7);
      note_->write(share(tensor).to_text());
      EXPECT_EQ(count_files(directory_.path().c_str()), 1u);
      note_->reach(2);
      std::exit(::testing::Test::HasFailure() ? 1 : 0);
    });
    EXPECT_EQ(user.join(), 0);
    EXPECT_EQ(count_files(directory_.path().c_str()), 0u);
  });
  EXPECT_EQ(last_byte(open(Handle::from_text(note_->read(1)))), 7);
  note_->step = 2;
}

TEST_F(RuntimeDirectory, LosesWhatAKilledProcessLeftAtTheNextStart) {
  JoinedChild live([&] {
    const Tensor tensor = bytes_with(1000, 7);
    const Handle handle = share(tensor);
    note_->step = 1;
    note_->reach(3);
  });
  note_->reach(1);
  Child victim([&] {
    const Tensor tensor = bytes_with(1000, 7);
    const Handle handle = share(tensor);
    note_->step = 2;
    pause();
  });
  note_->reach(2);
  victim.kill();
  for (const auto& file : std::filesystem::directory_iterator(directory_.path())) {
    const timespec long_ago[2] = {{1000, 0}, {1000, 0}};
    ::utimensat(AT_FDCWD, file.path().c_str(), long_ago, 0);
  }
  EXPECT_EQ(count_files(directory_.path().c_str()), 2u);
  run_peers(Form::spawned, {{"next", &starting}});
  EXPECT_EQ(count_files(directory_.path().c_str()), 1u) << "of the one that lives";
  note_->step = 3;
}

class FileSystem : public WithDirectory {
 protected:
  FileSystem() { set_strategy(Strategy::file_system); }
  ~FileSystem() override { set_strategy(Strategy::file_descriptor); }
};

/// systemd-logind's RemoveIPC and eager resource trackers do this.
TEST_F(FileSystem, WhenSomebodyUnlinksTheNamesUsersGoOnAndNewOnesAreToldWhy) {
  Child owner([&] {
    const Tensor tensor = bytes_with(1000, 7);
    note_->write(share(tensor).to_text());
    note_->reach(2);
    EXPECT_EQ(last_byte(tensor), 8);
    EXPECT_EQ(last_byte(bytes_with(40 * kMiB, 5)), 5);
  });
  const Handle handle = Handle::from_text(note_->read(1));
  Shared<Note> unlinked;
  Child late([&] {
    unlinked->reach(1);
    const std::uint64_t before = stats().foreign_segments;
    expect_refusal(ErrorCode::stale_handle, {"is gone", directory_.path().c_str()}, [&] { open(handle); });
    EXPECT_EQ(stats().leases, 0u);
    EXPECT_EQ(stats().foreign_segments, before);
  });
  const Tensor tensor = open(handle);
  for (const auto& file : std::filesystem::directory_iterator(directory_.path()))
    std::filesystem::remove(file);
  EXPECT_EQ(last_byte(open(handle)), 7);
  unlinked->step = 1;
  EXPECT_EQ(late.join(), 0);
  tensor.as<unsigned char>()[999] = 8;
  note_->step = 2;
  EXPECT_EQ(owner.join(), 0);
}

TEST_F(FileSystem, AnAbsentDirectoryIsAnErrorAndThenItWorks) {
  JoinedChild owner([&] {
    ::setenv("ONECOPY_SHM_DIR", "/nonexistent/directory", 1);
    const Footprint before = Footprint::unchanging();
    expect_refusal(ErrorCode::system, {"/nonexistent/directory", "ONECOPY_SHM_DIR", "file_descriptor"},
                   [] { bytes_with(1000, 1); });
    expect_soon(before);
    set_strategy(Strategy::file_descriptor);
    EXPECT_EQ(last_byte(bytes_with(1000, 1)), 1);
    set_strategy(Strategy::file_system);
    ::setenv("ONECOPY_SHM_DIR", directory_.path().c_str(), 1);
    EXPECT_EQ(last_byte(open(share(bytes_with(1000, 2)))), 2);
  });
}

TEST_F(FileSystem, AFullDirectoryIsAnErrorWithTheNumbersAndThenItWorks) {
  Child owner([&] {
    std::string why = try_private_mounts();
    if (why.empty()) why = try_mount_tmpfs(directory_.path(), "size=1m");
    if (!why.empty()) {
      note_->write(why);
      return;
    }
    const std::uint64_t before = Footprint::unchanging().descriptors;
    expect_refusal(ErrorCode::out_of_memory,
                   {"4194304", "1048576 bytes free", "ONECOPY_SHM_DIR", "file_descriptor"},
                   [] { bytes_with(4 * kMiB, 1); });
    EXPECT_TRUE(eventually([&] { return stats().descriptors == before + 1; }))
        << "the segment stays for smaller requests";
    {
      const Tensor tensor = bytes_with(kMiB / 2, 3);
      EXPECT_EQ(last_byte(open(share(tensor))), 3);
      expect_refusal(ErrorCode::out_of_memory, {"bytes free"}, [] { bytes_with(kMiB * 3 / 4, 1); });
    }
    EXPECT_EQ(last_byte(bytes_with(kMiB * 3 / 4, 4)), 4);  // there is room again
    set_strategy(Strategy::file_descriptor);
    EXPECT_EQ(last_byte(bytes_with(4 * kMiB, 5)), 5);
  });
  EXPECT_EQ(owner.join(), 0);
  if (note_->step == 1) GTEST_SKIP() << note_->read();
}

}  // namespace
}  // namespace onecopy
