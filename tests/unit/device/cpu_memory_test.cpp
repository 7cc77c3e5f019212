// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>

#include "conformance/scratch_directory.h"
#include "core/point.h"
#include "device/backend.h"
#include "device/reserve_listener.h"
#include "onecopy/core/error.h"
#include "os/memfd.h"

namespace onecopy {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kHugePage = 2 * kMiB;  // the unit of memory where root has allowed huge pages

std::unique_ptr<DeviceMemory> create(std::size_t bytes) {
  return backend(DeviceType::cpu).create(0, bytes, SegmentKind::memfd, "0123456789abcdef", 1);
}

/// Uses the backends at the very end: after the destructors of all static objects that were made later, including the
/// backends'.
void use_backends_at_the_end() {
  for (const DeviceType type : backend_types()) {
    Backend& used = backend(type);
    if (used.type() != type || used.traits().alignment == 0) ::_exit(2);
    used.devices();
  }
  ::_exit(0);
}

TEST(BackendsDeathTest, CanBeUsedWhileStaticObjectsGo) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // in a new program: nothing has used a backend yet
  EXPECT_EXIT(
      {
        std::atexit(&use_backends_at_the_end);
        for (const DeviceType type : backend_types()) backend(type).devices();
        std::exit(1);
      },
      ::testing::ExitedWithCode(0), "");
}

std::uint64_t resident_bytes(const Fd& fd) {
  struct stat info {};
  ::fstat(fd.get(), &info);
  return static_cast<std::uint64_t>(info.st_blocks) * 512;
}

ErrorCode code_of_opening(Fd fd, std::uint64_t size, Access access = Access::read_write) {
  ExportedMemory memory;
  memory.size = size;
  memory.fds.push_back(std::move(fd));
  try {
    backend(DeviceType::cpu).open(0, std::move(memory), access);
  } catch (const Error& error) {
    return error.code();
  }
  ADD_FAILURE() << "it was opened";
  return ErrorCode::system;
}

/// Signals are handled then: an interrupt of a long reservation waits for one batch at most.
TEST(CpuMemory, SaysHowFarAReservationHasCome) {
  constexpr std::size_t kBytes = 100 * kMiB;
  const auto memory = create(kBytes);
  std::size_t before = 0;
  const ReserveListener listener([&](std::size_t done, std::size_t total) {
    EXPECT_EQ(total, kBytes);
    EXPECT_GT(done, before);
    before = done;
  });
  memory->commit(0, kBytes);
  EXPECT_EQ(before, kBytes);
}

TEST(CpuBackend, IsThereOnEveryMachine) {
  EXPECT_EQ(backend_types().front(), DeviceType::cpu);
  const auto devices = backend(DeviceType::cpu).devices();
  ASSERT_EQ(devices.size(), 1u);
  EXPECT_EQ(devices[0].device, kCpu);
  EXPECT_EQ(devices[0].uuid, Uuid{});
  EXPECT_GT(devices[0].total_bytes, 0u);
}

TEST(CpuBackend, KindsOfOtherDevicesAreUnsupported) {
  EXPECT_THROW(backend(DeviceType::cpu).create(0, 4096, SegmentKind::cuda_vmm, "0", 1), Error);
  ExportedMemory memory;
  memory.kind = SegmentKind::ascend_key;
  memory.size = 4096;
  EXPECT_THROW(backend(DeviceType::cpu).open(0, std::move(memory), Access::read_write), Error);
}

TEST(MemfdMemory, TakesPhysicalMemoryOnlyWhereItIsCommitted) {
  const auto memory = create(64 * kMiB);
  const Fd fd = std::move(memory->export_memory(Access::read_write).fds.front());
  EXPECT_EQ(resident_bytes(fd), 0u);
  memory->commit(kHugePage, 5 * kHugePage);
  EXPECT_EQ(resident_bytes(fd), 5 * kHugePage);
  memory->decommit(2 * kHugePage, 3 * kHugePage);
  EXPECT_EQ(resident_bytes(fd), 2 * kHugePage);
  memory->commit(0, 64 * kMiB);
  EXPECT_EQ(resident_bytes(fd), 64 * kMiB);
}

TEST(MemfdMemory, ARefusedCommitTakesNothing) {
  const std::size_t bytes = (3 * backend(DeviceType::cpu).devices().at(0).total_bytes / kMiB + 1) * kMiB;
  const auto memory = create(bytes);
  const Fd fd = std::move(memory->export_memory(Access::read_write).fds.front());
  memory->commit(0, kHugePage);
  EXPECT_THROW(memory->commit(0, bytes), Error);
  EXPECT_EQ(resident_bytes(fd), kHugePage);
}

int written_meanwhile = -1;

/// Its real owner may have filled a hole since we saw it.
TEST(SharedFileMemory, ARefusedCommitTakesNothingAwayFromWhoseFileItIs) {
  const std::size_t bytes = (3 * backend(DeviceType::cpu).devices().at(0).total_bytes / kMiB + 1) * kMiB;
  const Fd file = create_memfd("theirs", bytes);
  ExportedMemory theirs;
  theirs.kind = SegmentKind::shared_file;
  theirs.size = bytes;
  theirs.fds.push_back(file.duplicate());
  const auto memory = backend(DeviceType::cpu).open(0, std::move(theirs), Access::read_write);
  written_meanwhile = file.get();
  point_hook = [](const char*) noexcept { EXPECT_EQ(::pwrite(written_meanwhile, "theirs", 6, 0), 6); };
  EXPECT_THROW(memory->commit(0, bytes), Error);
  point_hook = nullptr;
  char text[7] = {};
  EXPECT_EQ(::pread(file.get(), text, 6, 0), 6);
  EXPECT_STREQ(text, "theirs");
}

TEST(MemfdMemory, CommittedPagesAreMapped) {
  const auto memory = create(8 * kMiB);
  memory->commit(0, 8 * kMiB);
  std::vector<unsigned char> in_core(8 * kMiB / static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)));
  ASSERT_EQ(::mincore(memory->data(), 8 * kMiB, in_core.data()), 0);
  for (const unsigned char page : in_core) ASSERT_EQ(page & 1, 1);
}

TEST(MemfdMemory, CannotBeShrunkOrGrown) {
  const auto memory = create(kMiB);
  const Fd fd = std::move(memory->export_memory(Access::read_write).fds.front());
  EXPECT_NE(::ftruncate(fd.get(), 0), 0);
  EXPECT_NE(::ftruncate(fd.get(), 2 * kMiB), 0);
}

TEST(MemfdMemory, ExportedDescriptorsAreClosedOnExec) {
  const auto memory = create(kMiB);
  for (const Access access : {Access::read_write, Access::read_only}) {
    const Fd fd = std::move(memory->export_memory(access).fds.front());
    EXPECT_NE(::fcntl(fd.get(), F_GETFD) & FD_CLOEXEC, 0);
    EXPECT_EQ(::fcntl(fd.get(), F_GETFL) & O_ACCMODE, access == Access::read_only ? O_RDONLY : O_RDWR);
  }
}

TEST(MemfdMemory, ADescriptorThatCouldShrinkIsRefused) {
  Fd unsealed(::memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(unsealed.get(), kMiB), 0);
  EXPECT_EQ(code_of_opening(std::move(unsealed), kMiB), ErrorCode::bad_handle);
}

TEST(MemfdMemory, ADescriptorOfSomethingElseIsRefused) {
  EXPECT_EQ(code_of_opening(Fd(::open("/dev/null", O_RDWR | O_CLOEXEC)), kMiB), ErrorCode::bad_handle);
  EXPECT_EQ(code_of_opening(Fd(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC)), kMiB),
            ErrorCode::bad_handle);
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const Fd other(ends[1]);
  EXPECT_EQ(code_of_opening(Fd(ends[0]), kMiB), ErrorCode::bad_handle);
}

TEST(MemfdMemory, AReadOnlyDescriptorCannotBeOpenedForWriting) {
  const auto memory = create(kMiB);
  Fd fd = std::move(memory->export_memory(Access::read_only).fds.front());
  EXPECT_EQ(code_of_opening(std::move(fd), kMiB), ErrorCode::read_only);
}

TEST(MemfdMemory, NeedsNoDirectory) {
  const ScratchDirectory directory;
  std::filesystem::remove_all(directory.path());
  const auto memory = create(kMiB);
  memory->commit(0, kMiB);
  memory->data()[0] = std::byte{1};
}

}  // namespace
}  // namespace onecopy
