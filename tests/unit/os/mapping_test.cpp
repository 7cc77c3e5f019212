// SPDX-License-Identifier: Apache-2.0
#include "os/mapping.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdint>
#include <thread>
#include <utility>

#include "expect_error.h"
#include "os/memfd.h"
#include "support/child.h"

namespace onecopy {
namespace {

constexpr std::size_t kPage = 4096;

std::size_t page() { return static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)); }

TEST(Mapping, TwoMappingsOfOneFileAreTheSameMemory) {
  const Fd fd = create_memfd("test", kPage);
  const Mapping one = Mapping::of(fd, kPage, Access::read_write);
  const Mapping two = Mapping::of(fd, kPage, Access::read_only);
  *one.as<int>(8) = 42;
  EXPECT_EQ(*two.as<int>(8), 42);
  EXPECT_NE(one.data(), two.data());
}

TEST(Mapping, StartsAtTheOffset) {
  const Fd fd = create_memfd("test", 2 * page());
  const Mapping whole = Mapping::of(fd, 2 * page(), Access::read_write);
  const Mapping second = Mapping::of(fd, page(), Access::read_write, page());
  *second.as<int>() = 7;
  EXPECT_EQ(*whole.as<int>(page()), 7);
}

TEST(Mapping, WhatWasForgottenReadsAsZeroAndLeavesTheFileAlone) {
  const Fd fd = create_memfd("test", kPage);
  Mapping one = Mapping::of(fd, kPage, Access::read_only);
  const Mapping two = Mapping::of(fd, kPage, Access::read_write);
  *two.as<int>() = 42;
  one.forget();
  EXPECT_EQ(*one.as<int>(), 0);
  *one.as<int>() = 7;
  EXPECT_EQ(*two.as<int>(), 42);
}

TEST(Mapping, ThatShrinksKeepsThePagesAtItsBeginning) {
  Mapping memory = Mapping::anonymous(std::size_t{40} << 20);
  *memory.as<int>(page()) = 42;
  memory.shrink(page() + 1);
  EXPECT_EQ(memory.size(), 2 * page());
  EXPECT_EQ(*memory.as<int>(page()), 42);
  EXPECT_EQ(::msync(memory.data() + 2 * page(), page(), MS_ASYNC), -1) << "which is not mapped";
  memory.shrink(3 * page());
  EXPECT_EQ(memory.size(), 2 * page());
  memory.shrink(0);
  EXPECT_FALSE(memory);
}

/// A claimer that comes late reads a word of a peer that is being closed; ThreadSanitizer looks on.
TEST(Mapping, WhoReadsWhileItIsForgottenSeesWhatWasThereOrZero) {
  for (int round = 0; round < 50; ++round) {
    const Fd fd = create_memfd("test", kPage);
    Mapping memory = Mapping::of(fd, kPage, Access::read_write);
    auto& word = *memory.as<std::atomic<std::uint64_t>>();
    word = 42;
    std::atomic<bool> reading{false};
    std::thread reader([&] {
      std::uint64_t seen = word.load();
      reading = true;
      while (seen == 42) seen = word.load();
      EXPECT_EQ(seen, 0u);
    });
    while (!reading) std::this_thread::yield();
    memory.forget();
    reader.join();
  }
}

TEST(Mapping, MovingHandsTheRangeOver) {
  Mapping first = Mapping::anonymous(kPage);
  std::byte* data = first.data();
  Mapping second = std::move(first);
  EXPECT_EQ(first.data(), nullptr);
  EXPECT_EQ(first.size(), 0u);
  EXPECT_EQ(second.data(), data);
  second.reset();
  EXPECT_FALSE(second);
}

/// A large one goes part by part: another thread that maps memory waits for a part alone.
TEST(Mapping, OfManyPartsGoesWhole) {
  constexpr std::size_t kMiB = 1 << 20;
  for (const std::size_t size : {16 * kMiB - page(), 16 * kMiB, 40 * kMiB + page()}) {
    Mapping large = Mapping::anonymous(size);
    std::byte* const begin = large.data();
    large.reset();
    unsigned char found = 0;
    for (std::size_t at = 0; at < size; at += page())
      ASSERT_NE(::mincore(begin + at, page(), &found), 0) << at;
  }
}

TEST(Mapping, WritingThroughAReadOnlyOneIsASegmentationFault) {
  const Fd fd = create_memfd("test", kPage);
  const Mapping mapping = Mapping::of(fd, kPage, Access::read_only);
  testing::Child child([&] {
    std::signal(SIGSEGV, SIG_DFL);
    *mapping.as<volatile int>() = 1;
  });
  EXPECT_EQ(child.join(), -SIGSEGV);
}

TEST(Mapping, AReadOnlyDescriptorCannotBeMappedForWriting) {
  const Fd fd = reopen_read_only(create_memfd("test", kPage));
  EXPECT_TRUE(Mapping::of(fd, kPage, Access::read_only));
  const std::string why =
      expect_error(ErrorCode::read_only, [&] { Mapping::of(fd, kPage, Access::read_write); });
  EXPECT_PRED2(contains, why, "read-only access");
}

TEST(Mapping, NothingCannotBeMapped) {
  const Fd fd = create_memfd("test", kPage);
  expect_error(ErrorCode::invalid_argument, [&] { Mapping::of(fd, 0, Access::read_write); });
}

TEST(Mapping, AddressSpaceLimitIsReportedWithTheNumbers) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers need the address space";
#endif
  testing::Child child([] {
    const rlimit limit{1u << 30, 1u << 30};
    ASSERT_EQ(::setrlimit(RLIMIT_AS, &limit), 0);
    const std::string why =
        expect_error(ErrorCode::out_of_mappings, [] { Mapping::anonymous(std::size_t{1} << 31); });
    EXPECT_PRED2(contains, why, "2147483648 bytes");
    EXPECT_PRED2(contains, why, "1073741824 bytes");
    EXPECT_PRED2(contains, why, "vm.max_map_count");
  });
  EXPECT_EQ(child.join(), 0);
}

}  // namespace
}  // namespace onecopy
