// SPDX-License-Identifier: Apache-2.0
// Blocks as storages: their exact bytes, and memory made by others.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "onecopy/memory/dlpack.h"
#include "onecopy/share/share.h"
#include "onecopy/share/stats.h"
#include "os/fd.h"
#include "support/child.h"
#include "support/eventually.h"
#include "support/footprint.h"
#include "support/limits.h"
#include "support/refusal.h"

namespace onecopy {
namespace {

using testing::Child;
using testing::expect_refusal;
using testing::expect_soon;
using testing::Footprint;

Tensor bytes(std::int64_t count) { return empty(Layout(DType::u8, {count})); }

Tensor foreign() { return from_dlpack(to_dlpack_versioned(bytes(4))); }

class StorageOf : public ::testing::TestWithParam<std::int64_t> {};

TEST_P(StorageOf, HasExactlyTheBytesThatWereAskedFor) {
  const Tensor tensor = bytes(GetParam());
  EXPECT_EQ(storage(tensor).data(), tensor.as<std::byte>());
  EXPECT_EQ(storage(tensor).size(), static_cast<std::size_t>(GetParam()));
}

TEST_P(StorageOf, IsTheSameThroughAHandle) {
  const Tensor tensor = bytes(GetParam());
  const Handle handle = Handle::from_bytes(share(tensor).to_bytes());
  EXPECT_EQ(handle.fields().storage_size, static_cast<std::uint64_t>(GetParam()));
  EXPECT_EQ(storage(open(handle)).size(), static_cast<std::size_t>(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(Sizes, StorageOf, ::testing::Values(0, 1, 63, 65, 4097, 40'001, (33 << 20) + 1),
                         [](const auto& size) { return std::to_string(size.param) + "Bytes"; });

TEST(Storage, OfAViewIsTheWholeBlock) {
  const Tensor whole = empty(Layout(DType::f32, {10, 10}));
  const Tensor view = whole.slice(0, 3, 5).slice(1, 2, 4);
  EXPECT_EQ(storage(view).data(), whole.as<std::byte>());
  EXPECT_EQ(storage(view).size(), 400u);
}

TEST(Storage, OfMemoryOfOtherLibrariesIsRefused) {
  EXPECT_TRUE(is_shareable(bytes(0)));
  EXPECT_FALSE(is_shareable(Tensor()));
  EXPECT_FALSE(is_shareable(foreign()));
  expect_refusal(ErrorCode::invalid_argument, {"another library"}, [] { storage(foreign()); });
  expect_refusal(ErrorCode::invalid_argument, {"another library"}, [] { storage(Tensor()); });
}

/// Asking for it does not cost what sharing costs.
TEST(Storage, DoesNotExportTheBlock) {
  Tensor tensor = bytes(100);
  storage(tensor);
  const std::uint64_t generation = share(tensor).fields().generation;
  storage(tensor);
  EXPECT_EQ(share(tensor).fields().generation, generation);
}

// Memory that was made elsewhere.

Fd make_memfd(std::size_t size) {
  Fd fd(::memfd_create("made elsewhere", MFD_CLOEXEC));
  EXPECT_EQ(::ftruncate(fd.get(), static_cast<off_t>(size)), 0);
  return fd;
}

/// As torch makes them: named, opened, unlinked.
Fd make_shm(std::size_t size) {
  const std::string name = "/onecopy-test-" + std::to_string(::getpid());
  Fd fd(::shm_open(name.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600));
  ::shm_unlink(name.c_str());
  EXPECT_EQ(::ftruncate(fd.get(), static_cast<off_t>(size)), 0);
  return fd;
}

class AdoptedFile : public ::testing::TestWithParam<Fd (*)(std::size_t)> {};

TEST_P(AdoptedFile, IsTheSameMemory) {
  const Fd fd = GetParam()(1000);
  ASSERT_EQ(::pwrite(fd.get(), "hello", 5, 990), 5);
  const Tensor tensor = adopt_file(fd.get(), 1000);
  EXPECT_EQ(tensor.layout(), Layout(DType::u8, {1000}));
  EXPECT_EQ(storage(tensor).size(), 1000u);
  EXPECT_EQ(std::memcmp(tensor.as<char>() + 990, "hello", 5), 0);
  tensor.as<char>()[0] = 'x';
  char first = 0;
  ASSERT_EQ(::pread(fd.get(), &first, 1, 0), 1);
  EXPECT_EQ(first, 'x');
}

TEST_P(AdoptedFile, KeepsItsLengthAndStaysTheCallers) {
  const Fd fd = GetParam()(5000);
  const Tensor tensor = adopt_file(fd.get(), 4100);
  struct stat file {};
  ASSERT_EQ(::fstat(fd.get(), &file), 0);
  EXPECT_EQ(file.st_size, 5000);
  EXPECT_EQ(storage(tensor).size(), 4100u);
}

/// As torch's files with names begin: torch counts their holders there.
TEST_P(AdoptedFile, MayHaveAHeader) {
  const Fd fd = GetParam()(64 + 5000);
  ASSERT_EQ(::pwrite(fd.get(), "header", 6, 58), 6);
  ASSERT_EQ(::pwrite(fd.get(), "hello", 5, 64), 5);
  const Tensor tensor = adopt_file(fd.get(), 5000, 64);
  EXPECT_EQ(storage(tensor).data(), tensor.as<std::byte>());
  EXPECT_EQ(storage(tensor).size(), 5000u);
  EXPECT_EQ(std::memcmp(tensor.data(), "hello", 5), 0);
  Child borrower([text = share(tensor).to_text()] {
    const Tensor mine = open(Handle::from_text(text));
    EXPECT_EQ(std::memcmp(mine.data(), "hello", 5), 0);
    mine.as<char>()[4999] = 'x';
  });
  EXPECT_EQ(borrower.join(), 0);
  char last = 0;
  ASSERT_EQ(::pread(fd.get(), &last, 1, 64 + 4999), 1);
  EXPECT_EQ(last, 'x');
  expect_refusal(ErrorCode::invalid_argument, {"5064 bytes", "5000 were asked for from byte 65"},
                 [&] { adopt_file(fd.get(), 5000, 65); });
}

/// A sparse file in a full /dev/shm ends in "Bus error" at the first touch.
TEST_P(AdoptedFile, HasItsPagesReserved) {
  constexpr std::size_t kBytes = (1 << 20) + 17;
  const Fd fd = GetParam()(kBytes);
  const Tensor tensor = adopt_file(fd.get(), kBytes);
  struct stat file {};
  ASSERT_EQ(::fstat(fd.get(), &file), 0);
  EXPECT_GE(static_cast<std::size_t>(file.st_blocks) * 512, kBytes);
}

TEST_P(AdoptedFile, CanBeSharedAndOpened) {
  const Fd fd = GetParam()(100);
  const Tensor tensor = adopt_file(fd.get(), 100);
  EXPECT_EQ(open(Handle::from_text(share(tensor).to_text())).data(), tensor.data());
}

TEST_P(AdoptedFile, LeavesNothingBehind) {
  { const Tensor warm = bytes(1); }
  const Fd fd = GetParam()(4096);
  const Footprint before = Footprint::unchanging();
  const auto segments = stats().segments;
  for (int i = 0; i < 100; ++i) adopt_file(fd.get(), 4096);
  expect_soon(before);
  EXPECT_TRUE(testing::eventually([&] { return stats().segments == segments; }));
}

INSTANTIATE_TEST_SUITE_P(From, AdoptedFile, ::testing::Values(&make_memfd, &make_shm),
                         [](const auto& from) { return from.param == &make_memfd ? "memfd" : "dev_shm"; });

TEST(AdoptFile, RefusesWhatIsNotSharedMemory) {
  const Fd socket(::open("/proc/self/status", O_RDONLY | O_CLOEXEC));
  expect_refusal(ErrorCode::invalid_argument, {"not shared memory", "onecopy::empty()"},
                 [&] { adopt_file(socket.get(), 10); });
  expect_refusal(ErrorCode::invalid_argument, {"descriptor -1"}, [] { adopt_file(-1, 10); });
}

TEST(AdoptFile, RefusesMoreThanThereIs) {
  const Fd fd = make_memfd(4096);
  expect_refusal(ErrorCode::invalid_argument, {"has 4096 bytes", "4097 were asked"},
                 [&] { adopt_file(fd.get(), 4097); });
  expect_refusal(ErrorCode::invalid_argument, {"no bytes"}, [&] { adopt_file(fd.get(), 0); });
}

TEST(AdoptFile, RefusesADescriptorForReadingOnly) {
  const Fd fd = make_memfd(4096);
  const Fd reading(::open(("/proc/self/fd/" + std::to_string(fd.get())).c_str(), O_RDONLY | O_CLOEXEC));
  expect_refusal(ErrorCode::read_only, {"reading and writing"}, [&] { adopt_file(reading.get(), 4096); });
}

TEST(AdoptFile, WithoutDescriptorsLeftIsAnErrorAndLeavesNothing) {
  { const Tensor warm = bytes(1); }
  const Fd fd = make_memfd(4096);
  const Footprint before = Footprint::unchanging();
  {
    const testing::Limit limit(RLIMIT_NOFILE, testing::descriptors_for(0));
    expect_refusal(ErrorCode::out_of_descriptors, {"duplicate descriptor"},
                   [&] { adopt_file(fd.get(), 4096); });
  }
  expect_soon(before);
}

}  // namespace
}  // namespace onecopy
