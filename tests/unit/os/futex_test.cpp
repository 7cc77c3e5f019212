// SPDX-License-Identifier: Apache-2.0
#include "os/futex.h"

#include <gtest/gtest.h>

#include "os/mapping.h"
#include "os/memfd.h"
#include "support/child.h"
#include "support/watchdog.h"

namespace onecopy {
namespace {

using namespace std::chrono_literals;
using testing::JoinedChild;
using testing::Shared;
using Word = std::atomic<std::uint32_t>;

TEST(Futex, TimesOutWhileTheWordStaysTheSame) {
  const Word word{3};
  const auto start = std::chrono::steady_clock::now();
  EXPECT_FALSE(futex_wait(word, 3, 5ms));
  EXPECT_GE(std::chrono::steady_clock::now() - start, 5ms);
  EXPECT_FALSE(futex_wait(word, 3, 0ms));
  EXPECT_FALSE(futex_wait(word, 3, -1ms));
}

TEST(Futex, DoesNotSleepWhenTheWordIsAnother) {
  const Word word{3};
  EXPECT_TRUE(futex_wait(word, 4, 1h));
}

TEST(Futex, WakesAnotherProcess) {
  const testing::Watchdog watchdog;
  const Shared<Word> word;
  JoinedChild child([&] {
    while (word->load() == 0) futex_wait(*word, 0, 100s);
  });
  word->store(1);
  futex_wake(*word, 1);
}

TEST(Futex, WakesThroughAnotherMappingEvenAReadOnlyOne) {
  const testing::Watchdog watchdog;
  const Fd fd = create_memfd("test", 4096);
  const Mapping writer = Mapping::of(fd, 4096, Access::read_write);
  const Mapping reader = Mapping::of(fd, 4096, Access::read_only);
  JoinedChild child([&] {
    while (reader.as<Word>()->load() == 0) futex_wait(*reader.as<Word>(), 0, 100s);
  });
  writer.as<Word>()->store(1);
  futex_wake(*writer.as<Word>(), 1);
}

}  // namespace
}  // namespace onecopy
