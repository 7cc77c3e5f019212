// SPDX-License-Identifier: Apache-2.0
// Memory that is moved over addresses which other threads read.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <thread>
#include <vector>

#include "device/backend.h"
#include "device/reservation.h"
#include "onecopy/core/error.h"
#include "support/child.h"
#include "support/eventually.h"
#include "support/limits.h"

namespace onecopy {
namespace {

using onecopy::testing::Child;

constexpr std::size_t kPage = 4096;
constexpr std::size_t kMiB = std::size_t{1} << 20;

/// Two chunks whose bytes are 1 and 2.
class HostReservationTest : public ::testing::Test {
 protected:
  std::unique_ptr<Reservation> shown(const PhysicalChunk& chunk, Access access = Access::read_only) const {
    auto addresses = backend(DeviceType::cpu).reserve(0, chunk.size());
    addresses->map(0, chunk, 0, chunk.size());
    addresses->allow(0, 0, chunk.size(), access);
    return addresses;
  }
  std::unique_ptr<PhysicalChunk> filled(int value) const {
    auto chunk = backend(DeviceType::cpu).create_chunk(0, bytes_);
    std::memset(shown(*chunk, Access::read_write)->base(), value, bytes_);
    return chunk;
  }
  int at(std::size_t offset) const {
    return static_cast<int>(const_cast<volatile std::byte*>(slot_->base())[offset]);
  }

  const std::size_t bytes_ = 6 * kMiB + kPage;
  const std::unique_ptr<PhysicalChunk> one_ = filled(1), two_ = filled(2);
  const std::unique_ptr<Reservation> slot_ = shown(*one_);
};

/// Threads that read one byte of each page in a loop until the end of the object.
class Readers {
 public:
  Readers(const std::byte* at, std::size_t bytes) {
    for (std::size_t reader = 0; reader < 2; ++reader)
      threads_.emplace_back([this, at, bytes, reader] {
        for (std::size_t i = reader; !ends_; i = (i + 37) % (bytes / kPage)) {
          const auto value = static_cast<int>(const_cast<volatile const std::byte*>(at)[i * kPage]);
          if (value != 1 && value != 2) others_.fetch_add(1);
        }
      });
  }
  ~Readers() {
    ends_ = true;
    for (std::thread& thread : threads_) thread.join();
    EXPECT_EQ(others_, 0u);
  }

 private:
  std::atomic<bool> ends_{false};
  std::atomic<unsigned> others_{0};
  std::vector<std::thread> threads_;
};

TEST_F(HostReservationTest, ThreadsThatReadFindTheOldOrTheNewMemoryWhileItIsReplaced) {
  const Readers readers(slot_->base(), bytes_);
  for (int times = 0; times < 2000; ++times) {
    const auto next = shown(times % 2 == 0 ? *two_ : *one_);
    ASSERT_TRUE(slot_->try_take(*next));
    ASSERT_EQ(next->base(), nullptr);
    ASSERT_EQ(at(bytes_ - 1), times % 2 == 0 ? 2 : 1);
  }
}

/// A program may give advice for a part of the memory, which is then several mappings of the kernel.
TEST_F(HostReservationTest, AddressesOfSeveralMappingsAreReplacedToo) {
  const Readers readers(slot_->base(), bytes_);
  for (int times = 0; times < 200; ++times) {
    ASSERT_EQ(::madvise(slot_->base() + kPage, kPage, MADV_DONTDUMP), 0);
    ASSERT_TRUE(slot_->try_take(*shown(times % 2 == 0 ? *two_ : *one_)));
    ASSERT_EQ(at(bytes_ - 1), times % 2 == 0 ? 2 : 1);
  }
}

/// Makes mappings until the kernel allows no more.
void use_up_mappings() {
  for (int access = PROT_READ;; access ^= PROT_READ ^ PROT_NONE)
    if (::mmap(nullptr, kPage, access, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED) return;
}

TEST_F(HostReservationTest, TheOldMemoryStaysIfTheProcessMayHaveNoMoreMappings) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers need mappings";
#endif
  Child child([&] {
    const auto next = shown(*two_);
    const Readers readers(slot_->base(), bytes_);
    use_up_mappings();
    EXPECT_THROW(slot_->try_take(*next), Error);
    EXPECT_EQ(at(0), 1);
    EXPECT_EQ(at(bytes_ - 1), 1);
  });
  EXPECT_EQ(child.join(), 0);
}

TEST_F(HostReservationTest, MemoryOfAnotherSizeIsRefused) {
  const auto smaller = backend(DeviceType::cpu).reserve(0, kPage);
  EXPECT_THROW(slot_->try_take(*smaller), Error);
  EXPECT_EQ(at(0), 1);
}

/// Returns the number of bytes that this process maps of chunks.
std::size_t mapped_bytes() {
  std::size_t bytes = 0;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);)
    if (line.find("onecopy-chunk") != std::string::npos)
      bytes += std::stoull(line.substr(line.find('-') + 1), nullptr, 16) - std::stoull(line, nullptr, 16);
  return bytes;
}

TEST_F(HostReservationTest, AForkedChildKeepsNoMemoryThatItsParentIsUnmapping) {
  if (onecopy::testing::kSanitized)
    GTEST_SKIP() << "sanitizers' allocators know nothing of forks beside other threads";
  for (int times = 0; times < 20; ++times) {
    ASSERT_TRUE(slot_->try_take(*shown(times % 2 == 0 ? *two_ : *one_)));
    Child child([&] {
      EXPECT_EQ(mapped_bytes(), bytes_);
      slot_->unmap(0, bytes_);
      EXPECT_TRUE(onecopy::testing::eventually([] { return mapped_bytes() == 0; }));
    });
    ASSERT_EQ(child.join(), 0);
  }
}

}  // namespace
}  // namespace onecopy
