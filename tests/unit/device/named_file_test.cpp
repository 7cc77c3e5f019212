// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <functional>
#include <iostream>

#include "conformance/scratch_directory.h"
#include "device/backend.h"
#include "device/janitor.h"
#include "onecopy/core/error.h"

namespace onecopy {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

struct NamedFile : ::testing::Test {
  static std::unique_ptr<DeviceMemory> create(std::uint32_t number, std::size_t bytes = kMiB) {
    return backend(DeviceType::cpu)
        .create(0, bytes, SegmentKind::named_file, "0123456789abcdef0123456789abcdef", number);
  }
  static std::unique_ptr<DeviceMemory> open(ExportedMemory memory, Access access = Access::read_write) {
    return backend(DeviceType::cpu).open(0, std::move(memory), access);
  }
  static ExportedMemory exported_path(const std::string& path, std::uint64_t size) {
    ExportedMemory memory;
    memory.kind = SegmentKind::named_file;
    memory.size = size;
    const auto* bytes = reinterpret_cast<const std::byte*>(path.data());
    memory.blob.assign(bytes, bytes + path.size());
    return memory;
  }
  static ErrorCode code_of(const std::function<void()>& call, std::string* message = nullptr) {
    try {
      call();
    } catch (const Error& error) {
      if (message) *message = error.what();
      return error.code();
    }
    ADD_FAILURE() << "nothing was thrown";
    return ErrorCode::protocol;
  }
  std::string path(const std::string& name) const { return directory.path() + "/" + name; }

  ScratchDirectory directory;
};

/// Runs `body` in a forked child; waits until the child has reached the end of it, where it sleeps.
class SleepingChild {
 public:
  explicit SleepingChild(const std::function<void()>& body) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
    pid_ = ::fork();
    if (pid_ == 0) {
      body();
      [[maybe_unused]] const auto written = ::write(ends[1], "x", 1);
      for (;;) ::pause();
    }
    ::close(ends[1]);
    char ready = 0;
    EXPECT_EQ(::read(ends[0], &ready, 1), 1);
    ::close(ends[0]);
  }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  ~SleepingChild() { kill(); }

 private:
  pid_t pid_ = 0;
};

TEST_F(NamedFile, HasANameWhileItIsUsedAndIsPrivate) {
  const auto memory = create(7);
  struct stat info {};
  ASSERT_EQ(::stat(path("onecopy-0123456789abcdef0123456789abcdef-7").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  EXPECT_EQ(info.st_size, static_cast<off_t>(kMiB));
}

TEST_F(NamedFile, ReservesSpaceWithoutTouching) {
  const auto memory = create(1, 8 * kMiB);
  memory->commit(kMiB, 2 * kMiB);
  struct stat info {};
  ASSERT_EQ(::stat(path("onecopy-0123456789abcdef0123456789abcdef-1").c_str(), &info), 0);
  EXPECT_EQ(static_cast<std::size_t>(info.st_blocks) * 512, 2 * kMiB);
}

TEST_F(NamedFile, TheLastUserRemovesTheName) {
  auto owner = create(1);
  auto borrower = open(owner->export_memory(Access::read_write));
  owner.reset();
  EXPECT_EQ(directory.files(), 1u);
  borrower.reset();
  EXPECT_EQ(directory.files(), 0u);
}

TEST_F(NamedFile, AReadOnlyBorrowerCanBeTheLastUser) {
  auto owner = create(1);
  auto borrower = open(owner->export_memory(Access::read_only), Access::read_only);
  owner.reset();
  borrower.reset();
  EXPECT_EQ(directory.files(), 0u);
}

TEST_F(NamedFile, AForkedChildThatInheritedItKeepsTheName) {
  auto owner = create(1);
  {
    const SleepingChild child([] {});
    owner.reset();
    EXPECT_EQ(directory.files(), 1u);
    EXPECT_EQ(remove_abandoned_files().in_use, 1u);
  }
  EXPECT_EQ(remove_abandoned_files().files, 1u);
}

TEST_F(NamedFile, WhatAForkedChildStillHadIsRemovedOnceItHasEnded) {
  auto owner = create(1);
  auto other = create(2);
  {
    const SleepingChild child([] {});
    owner.reset();
    EXPECT_TRUE(remove_released_files()) << "the child has it";
    EXPECT_EQ(directory.files(), 2u);
  }
  EXPECT_FALSE(remove_released_files());
  EXPECT_EQ(directory.files(), 1u) << "a file in use was touched";
}

TEST_F(NamedFile, AFileThatStaysInUseIsNotTriedForForEver) {
  auto owner = create(1);
  const auto borrower = open(owner->export_memory(Access::read_write));
  owner.reset();
  int tries = 0;
  while (remove_released_files()) ++tries;
  EXPECT_GT(tries, 0);
  EXPECT_EQ(directory.files(), 1u);
}

TEST_F(NamedFile, OpeningAfterTheEndIsStale) {
  auto owner = create(1);
  const auto exported = owner->export_memory(Access::read_write);
  owner.reset();
  EXPECT_EQ(code_of([&] { open(exported_path(path("onecopy-0123456789abcdef0123456789abcdef-1"), kMiB)); }),
            ErrorCode::stale_handle);
}

TEST_F(NamedFile, OpeningWhileSomebodyRemovesItIsStale) {
  const std::string name = path("onecopy-0123456789abcdef0123456789abcdef-2");
  const Fd remover(::open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  ASSERT_EQ(::ftruncate(remover.get(), kMiB), 0);
  ASSERT_EQ(::flock(remover.get(), LOCK_EX), 0);
  EXPECT_EQ(code_of([&] { open(exported_path(name, kMiB)); }), ErrorCode::stale_handle);
}

TEST_F(NamedFile, PathsThatWeDidNotMakeAreRefused) {
  std::ofstream(path("other")) << std::string(4096, 'x');
  EXPECT_EQ(code_of([&] { open(exported_path(path("other"), 4096)); }), ErrorCode::bad_handle);
  EXPECT_EQ(code_of([&] { open(exported_path("onecopy-relative", 4096)); }), ErrorCode::bad_handle);
  EXPECT_EQ(code_of([&] { open(exported_path(std::string("/\0/onecopy-x", 12), 4096)); }),
            ErrorCode::bad_handle);
  std::filesystem::create_symlink(path("other"), path("onecopy-link"));
  EXPECT_EQ(code_of([&] { open(exported_path(path("onecopy-link"), 4096)); }), ErrorCode::system);
  ::mkfifo(path("onecopy-fifo").c_str(), 0600);
  EXPECT_EQ(code_of([&] { open(exported_path(path("onecopy-fifo"), 4096)); }), ErrorCode::bad_handle);
}

TEST_F(NamedFile, ATakenNameStopsNobody) {
  std::ofstream(path("onecopy-0123456789abcdef0123456789abcdef-1")) << "another user's";
  auto first = create(1);
  auto second = create(1);
  EXPECT_EQ(directory.files(), 3u);
  auto borrower = open(first->export_memory(Access::read_write));
  std::memset(first->data(), 1, kMiB);
  EXPECT_EQ(borrower->data()[kMiB - 1], std::byte{1});
  EXPECT_EQ(second->data()[0], std::byte{0});
  borrower.reset();
  first.reset();
  second.reset();
  EXPECT_EQ(directory.files(), 1u) << "the file that took the name is not ours to remove";
}

TEST_F(NamedFile, TheJanitorKnowsNamesWithRandomDigits) {
  std::ofstream(path("onecopy-0123456789abcdef0123456789abcdef-1")) << "x";
  {
    const SleepingChild owner([] {
      for (int i = 0; i < 2; ++i) create(1).release();  // a killed owner's
    });
    EXPECT_EQ(remove_abandoned_files().in_use, 2u);
  }
  EXPECT_EQ(directory.files(), 2u);
  EXPECT_EQ(remove_abandoned_files().files, 2u);
  EXPECT_EQ(directory.files(), 0u);
}

TEST_F(NamedFile, TheJanitorTouchesNoNameThatIsNotQuiteOurs) {
  const std::string ours = "onecopy-0123456789abcdef0123456789abcdef-1";
  for (const char* rest : {"-", "-0123", "-0123456789abcdeg", "-0123456789abcdef0", "-0123456789abcdef-1"})
    std::ofstream(path(ours + rest)) << "x";
  EXPECT_EQ(remove_abandoned_files().files, 0u);
  EXPECT_EQ(directory.files(), 5u);
}

TEST_F(NamedFile, AnAbsentDirectoryIsAnErrorThatNamesItAndTheWayOut) {
  const std::string gone = path("gone");
  ::setenv("ONECOPY_SHM_DIR", gone.c_str(), 1);
  std::string message;
  code_of([] { create(1); }, &message);
  EXPECT_NE(message.find(gone), std::string::npos) << message;
  EXPECT_NE(message.find("ONECOPY_SHM_DIR"), std::string::npos) << message;
  EXPECT_NE(message.find("file_descriptor"), std::string::npos) << message;
  EXPECT_EQ(remove_abandoned_files().files, 0u);
  ::setenv("ONECOPY_SHM_DIR", directory.path().c_str(), 1);
  EXPECT_NE(create(1), nullptr);
}

/// In a mount namespace of its own: a file system of 1 MiB. 0 when all went as it must.
int use_full_directory(const std::string& directory) {
  const std::string user = "0 " + std::to_string(::geteuid()) + " 1";
  const std::string group = "0 " + std::to_string(::getegid()) + " 1";
  const auto write = [](const char* file, const std::string& text) {
    return static_cast<bool>(std::ofstream(file) << text << std::flush);
  };
  if (::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0 || !write("/proc/self/uid_map", user) ||
      !write("/proc/self/setgroups", "deny") || !write("/proc/self/gid_map", group) ||
      ::mount("tmpfs", directory.c_str(), "tmpfs", 0, "size=1m") != 0)
    return 99;
  try {
    const auto memory = backend(DeviceType::cpu).create(0, 4 * kMiB, SegmentKind::named_file, "00", 1);
    try {
      memory->commit(0, 4 * kMiB);
      return 1;
    } catch (const Error& error) {
      const std::string message = error.what();
      if (error.code() != ErrorCode::out_of_memory) return 2;
      if (message.find(directory) == std::string::npos ||
          message.find("file_descriptor") == std::string::npos)
        return 3;
    }
    memory->commit(0, kMiB / 2);  // there is room for that: the failed call kept nothing
    std::memset(memory->data(), 1, kMiB / 2);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 4;
  }
}

TEST_F(NamedFile, AFullDirectoryIsAnErrorWithTheNumbersAndThenWorksAgain) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(use_full_directory(directory.path()));
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 99) GTEST_SKIP() << "not allowed to mount here";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST_F(NamedFile, TheJanitorRemovesWhatKilledProcessesLeft) {
  SleepingChild child([] {
    auto memory = create(1, 4 * kMiB);
    memory->commit(0, 2 * kMiB);
    static_cast<void>(memory.release());
  });
  CleanupReport report = remove_abandoned_files();
  EXPECT_EQ(report.files, 0u);
  EXPECT_EQ(report.in_use, 1u);
  child.kill();
  report = remove_abandoned_files();
  EXPECT_EQ(report.files, 1u);
  EXPECT_EQ(report.bytes, 2 * kMiB);
  EXPECT_EQ(report.in_use, 0u);
  EXPECT_EQ(directory.files(), 0u);
}

TEST_F(NamedFile, TheJanitorLeavesABorrowersFileAlone) {
  SleepingChild child([] { static_cast<void>(create(1).release()); });
  const auto borrower = open(exported_path(path("onecopy-0123456789abcdef0123456789abcdef-1"), kMiB));
  child.kill();
  EXPECT_EQ(remove_abandoned_files().in_use, 1u);
  borrower->data()[0] = std::byte{1};
}

TEST_F(NamedFile, TheJanitorTouchesNothingElse) {
  std::ofstream(path("other")) << "x";
  std::filesystem::create_directory(path("onecopy-directory"));
  std::filesystem::create_symlink("/etc/hostname", path("onecopy-link"));
  const CleanupReport report = remove_abandoned_files();
  EXPECT_EQ(report.files + report.in_use, 0u);
  EXPECT_EQ(directory.files(), 3u);
}

TEST(SharedDirectory, IsDevShmUnlessSaidOtherwise) {
  ::unsetenv("ONECOPY_SHM_DIR");
  EXPECT_EQ(shared_directory(), "/dev/shm");
  ::setenv("ONECOPY_SHM_DIR", "/somewhere//", 1);
  EXPECT_EQ(shared_directory(), "/somewhere");
  ::unsetenv("ONECOPY_SHM_DIR");
}

TEST(SharedDirectory, IsRefusedIfItIsARelativePath) {
  ::setenv("ONECOPY_SHM_DIR", "here", 1);
  try {
    shared_directory();
    ADD_FAILURE() << "a relative path was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_NE(std::string(error.what()).find("ONECOPY_SHM_DIR is \"here\""), std::string::npos)
        << error.what();
  }
  ::unsetenv("ONECOPY_SHM_DIR");
}

}  // namespace
}  // namespace onecopy
