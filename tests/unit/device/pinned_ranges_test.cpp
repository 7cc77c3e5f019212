// SPDX-License-Identifier: Apache-2.0
// Pages of the host that a driver has pinned: F1 and the like are facts that were seen on a card.
#include "device/pinned_ranges.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "device/backend.h"
#include "device/copy_counts.h"
#include "onecopy/core/error.h"
#include "onecopy/memory/copy.h"
#include "onecopy/share/share.h"
#include "os/mapping.h"
#include "os/memfd.h"
#include "support/cuda_calls.h"
#include "support/cuda_streams.h"
#include "support/refusal.h"

namespace onecopy {
namespace {

using testing::CudaCalls;
using testing::expect_refusal;
using testing::in_child;
using testing::in_child_with;

constexpr Device kFirst{DeviceType::cuda, 0};
constexpr Device kNpu{DeviceType::npu, 0};
constexpr std::size_t kPart = 64 << 10;

class PinnedPages : public ::testing::Test {
 protected:
  void SetUp() override {
    testing::Shared<std::atomic<std::size_t>> count;
    in_child([&] { *count = backend(DeviceType::cuda).devices().size(); });
    if (*count == 0) GTEST_SKIP() << "no CUDA device on this machine";
  }
};

/// A file of four parts whose bytes are 1, 2, 3 and 4.
struct File {
  explicit File(Access access = Access::read_write) : fd(create_memfd("pinned", 4 * kPart)) {
    writable = Mapping::of(fd, 4 * kPart, Access::read_write);
    for (std::size_t i = 0; i < 4; ++i)
      std::memset(writable.data() + i * kPart, static_cast<int>(i + 1), kPart);
    pages = Mapping::of(fd, 4 * kPart, access);
  }
  std::byte* part(std::size_t i) const { return pages.data() + i * kPart; }
  Fd fd;
  Mapping writable;
  Mapping pages;
};

Tensor on_card(std::size_t bytes, Device device = kFirst) {
  return empty(Layout(DType::u8, {static_cast<std::int64_t>(bytes)}), device);
}

void expect_content(const Tensor& there, const void* here) {
  std::vector<char> content(there.nbytes());
  copy_bytes_and_wait({content.data(), kCpu, there.data(), there.device(), content.size()});
  EXPECT_EQ(std::memcmp(content.data(), here, content.size()), 0);
}

TEST_F(PinnedPages, F1OneCopyOverTwoRegistrationsIsCutAtTheirEdges) {
  in_child([] {
    const File file;
    PinnedRanges& pinned = PinnedRanges::get();
    pinned.pin(kFirst, file.part(0), kPart, Access::read_write);
    pinned.pin(kFirst, file.part(1), kPart, Access::read_write);
    pinned.pin(kFirst, file.part(3), kPart, Access::read_write);
    const Tensor there = on_card(4 * kPart - 999);
    expect_refusal(ErrorCode::invalid_argument, {"cannot copy"}, [&] {
      backend(DeviceType::cuda).copy({there.data(), kFirst, file.part(0) + 999, kCpu, there.nbytes()}, {});
    });
    copy_bytes_and_wait({there.data(), kFirst, file.part(0) + 999, kCpu, there.nbytes()});
    expect_content(there, file.part(0) + 999);
    EXPECT_EQ(copy_counts.cut, 1u);
    std::memset(file.writable.data(), 0, 4 * kPart);
    copy_bytes_and_wait({file.part(0) + 999, kCpu, there.data(), kFirst, there.nbytes()});
    expect_content(there, file.part(0) + 999);
    EXPECT_EQ(copy_counts.cut, 2u);
    copy_bytes_and_wait({there.data(), kFirst, file.part(1), kCpu, kPart});
    EXPECT_EQ(copy_counts.cut, 2u) << "it lies within one";
  });
}

TEST_F(PinnedPages, ReadOnlyPagesAreRegisteredAsSuch) {
  in_child([] {
    const File file(Access::read_only);
    const CudaCalls cu(0);
    EXPECT_NE(cu.cuMemHostRegister(file.part(0), kPart, 1), testing::CUDA_SUCCESS) << "seen on an H100";
    PinnedRanges::get().pin(kFirst, file.part(0), 4 * kPart, Access::read_only);
    const Tensor there = on_card(4 * kPart);
    copy_bytes_and_wait({there.data(), kFirst, file.part(0), kCpu, there.nbytes()});
    expect_content(there, file.part(0));
  });
}

TEST_F(PinnedPages, ADriverThatCannotPinReadOnlyPagesIsNamed) {
  if (!testing::is_simulated()) GTEST_SKIP() << "wants the simulated driver: a real one has what it has";
  in_child_with({{"ONECOPY_SIM_CUDA_MISSING", "attribute113"}}, [] {
    const File file(Access::read_only);
    PinnedRanges& pinned = PinnedRanges::get();
    expect_refusal(ErrorCode::unsupported, {"cuda:0", "reading only", "READ_ONLY_HOST_REGISTER"},
                   [&] { pinned.pin(kFirst, file.part(0), kPart, Access::read_only); });
    EXPECT_EQ(pinned.bytes(), 0u);
    EXPECT_EQ(pinned.one_copy(file.part(0), 4 * kPart), 4 * kPart) << "nothing is left of it";
  });
}

TEST_F(PinnedPages, WithoutADriverThatIsSaid) {
  in_child_with({{"ONECOPY_CUDA_DRIVER", "libnot-there.so.1"}}, [] {
    const File file;
    expect_refusal(ErrorCode::unsupported, {"no CUDA driver", "libnot-there.so.1"},
                   [&] { PinnedRanges::get().pin(kFirst, file.part(0), kPart, Access::read_write); });
    expect_refusal(ErrorCode::unsupported, {"cpu", "name a card"},
                   [&] { PinnedRanges::get().pin(kCpu, file.part(0), kPart, Access::read_write); });
  });
}

TEST_F(PinnedPages, WhatIsPinnedIsKnown) {
  in_child([] {
    const File file;
    PinnedRanges& pinned = PinnedRanges::get();
    const auto refused = [&](std::byte* at, std::size_t bytes, const char* word) {
      expect_refusal(ErrorCode::invalid_argument, {word},
                     [&] { pinned.pin(kFirst, at, bytes, Access::read_write); });
    };
    pinned.pin(kFirst, file.part(1), kPart, Access::read_write);
    EXPECT_EQ(pinned.bytes(), kPart);
    EXPECT_TRUE(pinned.is_pinned(file.part(1) + 1, kPart - 1));
    EXPECT_FALSE(pinned.is_pinned(file.part(1) + 1, kPart));
    EXPECT_FALSE(pinned.is_pinned(file.part(0), 1));
    refused(file.part(0), 2 * kPart, "pinned already");
    refused(file.part(1) + 4096, 4096, "pinned already");
    refused(file.part(2) + 1, 4096, "whole pages");
    refused(file.part(2), 0, "whole pages");
    pinned.unpin(file.part(0));
    EXPECT_EQ(pinned.bytes(), kPart) << "nothing begins there";
    pinned.unpin(file.part(1));
    EXPECT_EQ(pinned.bytes(), 0u);
    pinned.pin(kFirst, file.part(0), 4 * kPart, Access::read_write);
    EXPECT_TRUE(pinned.is_pinned(file.part(0), 4 * kPart));
  });
}

TEST_F(PinnedPages, PagesThatSomebodyElseHasPinnedAreRefused) {
  in_child([] {
    const File file;
    const CudaCalls cu(0);
    ASSERT_EQ(cu.cuMemHostRegister(file.part(0), kPart, 1), testing::CUDA_SUCCESS);
    expect_refusal(ErrorCode::invalid_argument, {"cudaHostRegister"},
                   [&] { PinnedRanges::get().pin(kFirst, file.part(0), 4 * kPart, Access::read_write); });
  });
}

/// Why no process may punch a hole under pages that any process has pinned.
TEST_F(PinnedPages, F2AHoleUnderThemLeavesTheCardTheOldPages) {
  in_child([] {
    const File file;
    PinnedRanges& pinned = PinnedRanges::get();
    const Tensor there = on_card(kPart);
    const auto seen = [&] {
      copy_bytes_and_wait({there.data(), kFirst, file.part(0), kCpu, kPart});
      unsigned char byte = 0;
      copy_bytes_and_wait({&byte, kCpu, there.data(), kFirst, 1});
      return byte;
    };
    pinned.pin(kFirst, file.part(0), kPart, Access::read_write);
    std::memset(file.writable.data(), 5, kPart);
    EXPECT_EQ(seen(), 5) << "it is one memory";
    ASSERT_EQ(::fallocate(file.fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, kPart), 0);
    std::memset(file.writable.data(), 7, kPart);
    EXPECT_EQ(std::to_integer<int>(*file.part(0)), 7);
    EXPECT_EQ(seen(), 5) << "seen on an H100";
    pinned.unpin(file.part(0));
    pinned.pin(kFirst, file.part(0), kPart, Access::read_write);
    EXPECT_EQ(seen(), 7);
  });
}

/// Why they are unpinned before they are unmapped.
TEST_F(PinnedPages, F3AnotherMappingInTheirPlaceLeavesTheCardTheOldPages) {
  in_child([] {
    File file;
    PinnedRanges& pinned = PinnedRanges::get();
    const Tensor there = on_card(kPart);
    pinned.pin(kFirst, file.part(0), kPart, Access::read_write);
    file.pages.clear();
    copy_bytes_and_wait({there.data(), kFirst, file.part(0), kCpu, kPart});
    expect_content(there, file.writable.data());
    EXPECT_EQ(std::to_integer<int>(*file.part(0)), 0);
    EXPECT_TRUE(pinned.is_pinned(file.part(0), kPart));
  });
}

TEST_F(PinnedPages, F6UnpinningWaitsForTheDevice) {
  if (!testing::is_simulated()) GTEST_SKIP() << "wants the simulated driver: a real one may unpin at once";
  in_child([] {
    const CudaCalls cu(0);
    const File file;
    PinnedRanges& pinned = PinnedRanges::get();
    pinned.pin(kFirst, file.part(0), kPart, Access::read_write);
    std::atomic<bool> goes_on{false};
    std::atomic<bool> is_done{false};
    cu.cuLaunchHostFunc(
        cu.stream(),
        [](void* flag) {
          while (!*static_cast<std::atomic<bool>*>(flag)) std::this_thread::yield();
        },
        &goes_on);
    std::thread unpinning([&] {
      pinned.unpin(file.part(0));
      is_done = true;
    });
    while (pinned.is_pinned(file.part(0), 1)) std::this_thread::yield();
    EXPECT_FALSE(is_done);
    EXPECT_EQ(pinned.one_copy(file.part(0), 4 * kPart), kPart) << "its edges are kept until then";
    goes_on = true;
    unpinning.join();
    EXPECT_EQ(pinned.one_copy(file.part(0), 4 * kPart), 4 * kPart);
  });
}

TEST_F(PinnedPages, ARangeInUseStaysPinned) {
  in_child([] {
    const File file;
    PinnedRanges& pinned = PinnedRanges::get();
    pinned.pin(kFirst, file.part(0), kPart, Access::read_write);
    EXPECT_FALSE(pinned.unpin_unused(file.part(0), [] { return true; }));
    EXPECT_TRUE(pinned.is_pinned(file.part(0), kPart));
    EXPECT_TRUE(pinned.unpin_unused(file.part(0), [] { return false; }));
    EXPECT_FALSE(pinned.is_pinned(file.part(0), 1));
  });
}

/// It holds a block that the other thread has not seen: its first copy comes after the unpinning.
TEST_F(PinnedPages, AThreadThatGetsABlockWaitsForAnUnpinningUnderWay) {
  in_child([] {
    const File file;
    PinnedRanges& pinned = PinnedRanges::get();
    pinned.pin(kFirst, file.part(0), kPart, Access::read_write);
    std::atomic<bool> is_about_to{false};
    std::atomic<bool> was_unpinned{false};
    std::thread getter;
    EXPECT_TRUE(pinned.unpin_unused(file.part(0), [&] {
      getter = std::thread([&] {
        is_about_to = true;
        PinnedRanges::await_unpinning(file.part(0) + kPart - 1, 1);
        was_unpinned = !pinned.touches(file.part(0), 1);
      });
      while (!is_about_to) std::this_thread::yield();
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      EXPECT_FALSE(PinnedRanges::is_unpinning(file.part(1), kPart)) << "others do not wait";
      return false;
    }));
    getter.join();
    EXPECT_TRUE(was_unpinned);
  });
}

TEST_F(PinnedPages, AForkedChildHasPinnedNothing) {
  in_child([] {
    const File file;
    PinnedRanges::get().pin(kFirst, file.part(0), kPart, Access::read_write);
    const pid_t child = ::fork();
    if (child == 0) {
      PinnedRanges& own = PinnedRanges::get();
      const bool is_empty = own.bytes() == 0 && !own.is_pinned(file.part(0), 1);
      own.unpin(file.part(0));
      ::_exit(is_empty ? 0 : 1);
    }
    int status = -1;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
    EXPECT_TRUE(PinnedRanges::get().is_pinned(file.part(0), kPart))
        << "what the child does is its own business";
  });
}

TEST(PinnedPagesOfAscend, AreRegisteredAndCopied) {
  in_child([] {
    if (backend(DeviceType::npu).devices().empty()) return;
    const File file;
    PinnedRanges& pinned = PinnedRanges::get();
    for (const std::size_t i : {std::size_t{0}, std::size_t{1}})
      pinned.pin(kNpu, file.part(i), kPart, Access::read_write);
    const Tensor there = on_card(4 * kPart, kNpu);
    copy_bytes_and_wait({there.data(), kNpu, file.part(0), kCpu, there.nbytes()});
    expect_content(there, file.part(0));
    EXPECT_EQ(copy_counts.cut, 1u);
    pinned.unpin(file.part(0));
    pinned.unpin(file.part(1));
    EXPECT_EQ(pinned.bytes(), 0u);
  });
}

}  // namespace
}  // namespace onecopy
