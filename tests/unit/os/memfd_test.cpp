// SPDX-License-Identifier: Apache-2.0
#include "os/memfd.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>

#include "expect_error.h"
#include "os/file.h"
#include "os/mapping.h"
#include "support/child.h"
#include "support/limits.h"

namespace onecopy {
namespace {

constexpr std::size_t kSize = 8192;

TEST(Memfd, HasItsSizeAndIsClosedOnExec) {
  const Fd fd = create_memfd("test", kSize);
  EXPECT_EQ(file_size(fd), kSize);
  EXPECT_EQ(::fcntl(fd.get(), F_GETFD), FD_CLOEXEC);
}

TEST(Memfd, BeyondTheLimitOfFileSizesIsAnErrorAndNotADeath) {
  testing::Child child([] {
    const testing::Limit limit(RLIMIT_FSIZE, kSize);
    create_memfd("test", kSize);
    expect_error(ErrorCode::out_of_memory, [] { create_memfd("test", kSize + 1); });
  });
  EXPECT_EQ(child.join(), 0);
}

TEST(Memfd, NobodyCanShrinkOrGrowIt) {
  const Fd fd = create_memfd("test", kSize);
  EXPECT_EQ(seals_of(fd) & (kSealShrink | kSealGrow), kSealShrink | kSealGrow);
  EXPECT_EQ(::ftruncate(fd.get(), 0), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(::ftruncate(fd.get(), 2 * kSize), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(file_size(fd), kSize);
}

TEST(Memfd, HolesCanStillBePunched) {
  const Fd fd = create_memfd("test", kSize);
  EXPECT_EQ(::fallocate(fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), 0);
}

TEST(Memfd, FutureWriteSealKeepsOldWritersAndRefusesNewOnes) {
  const Fd fd = create_memfd("test", kSize);
  const Mapping owner = Mapping::of(fd, kSize, Access::read_write);
  add_seals(fd, kSealFutureWrite);
  expect_error(ErrorCode::read_only, [&] { Mapping::of(fd, kSize, Access::read_write); });
  const Mapping borrower = Mapping::of(fd, kSize, Access::read_only);
  *owner.as<int>() = 5;
  EXPECT_EQ(*borrower.as<int>(), 5);
  const char byte = 1;
  EXPECT_EQ(::pwrite(fd.get(), &byte, 1, 0), -1);
  EXPECT_EQ(errno, EPERM);
}

TEST(Memfd, ReadOnlyReopenRefusesWrites) {
  const Fd fd = create_memfd("test", kSize);
  const Fd reader = reopen_read_only(fd);
  EXPECT_EQ(::fcntl(reader.get(), F_GETFL) & O_ACCMODE, O_RDONLY);
  EXPECT_EQ(::fcntl(reader.get(), F_GETFD), FD_CLOEXEC);
  const char byte = 1;
  EXPECT_EQ(::pwrite(reader.get(), &byte, 1, 0), -1);
  EXPECT_EQ(file_size(reader), kSize);
}

TEST(Memfd, OrdinaryFilesKnowNoSeals) {
  const Fd fd = open_file("/proc/self/status", O_RDONLY);
  const std::string why = expect_error(ErrorCode::invalid_argument, [&] { seals_of(fd); });
  EXPECT_PRED2(contains, why, "memfd_create");
}

TEST(Memfd, ImpossibleSizesAreRefused) {
  expect_error(ErrorCode::invalid_argument, [] { create_memfd("test", ~std::size_t{0}); });
}

}  // namespace
}  // namespace onecopy
