// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <random>
#include <vector>

#include "channel/ring/ring.h"
#include "support/child.h"
#include "unit/channel/ring/ring_testing.h"

namespace onecopy {
namespace {

constexpr std::size_t kWorkers = 6;  // Even ones put, odd ones take.
constexpr int kKills = 600;
constexpr std::size_t kMaxLives = kKills + kWorkers + 2;

/// A worker's puts, as far as they are known. A life is one process; its items are numbered from 1.
struct Life {
  std::atomic<std::uint64_t> returned;  ///< puts that returned
  std::atomic<std::uint64_t> last;      ///< of its items that were accepted: position << 24 | number
};

/// Written inside accept(), so under the consumers' lock; a killed consumer leaves it as it is and the
/// next one is offered the same item again.
struct Ledger {
  std::atomic<std::uint64_t> next_position;
  std::atomic<std::uint64_t> torn, lost, twice;
  Life lives[kMaxLives];
};

constexpr std::uint64_t item_of(std::uint64_t life, std::uint64_t number) { return life << 24 | number; }

bool check(Ledger& ledger, RingItem item) {
  const auto value = read_number(item.bytes);
  if (!value || *value >> 24 >= kMaxLives) {
    ++ledger.torn;
    return true;
  }
  Life& life = ledger.lives[*value >> 24];
  const std::uint64_t number = *value & 0xff'ffff, known = life.last.load();
  const bool offered_again = known == (item.position << 24 | number);
  if (!offered_again) {
    if (number > (known & 0xff'ffff) + 1) ++ledger.lost;
    if (number < (known & 0xff'ffff) + 1) ++ledger.twice;
    life.last.store(item.position << 24 | number);
  }
  if (item.position > ledger.next_position) ++ledger.lost;
  if (item.position + 1 < ledger.next_position) ++ledger.twice;
  ledger.next_position = item.position + 1;
  return true;
}

std::unique_ptr<testing::Child> start_worker(Ring& ring, Ledger& ledger, bool puts, std::uint64_t life) {
  return std::make_unique<testing::Child>([&ring, &ledger, puts, life] {
    for (std::uint64_t number = 1;; ++number) {
      if (puts) {
        put_number(ring, item_of(life, number));
        ledger.lives[life].returned = number;
      } else {
        ring.take([&](RingItem item) { return check(ledger, item); });
      }
    }
  });
}

class RingStorm : public ::testing::TestWithParam<std::uint64_t> {};

TEST_P(RingStorm, TearsLosesAndRepeatsNothing) {
  Ring ring(RingOptions{.max_items = GetParam()});
  const testing::Shared<Ledger> shared;
  Ledger& ledger = *shared;
  std::mt19937 random(7);
  std::uint64_t lives = 0;
  std::vector<std::unique_ptr<testing::Child>> workers;
  for (std::size_t i = 0; i < kWorkers; ++i)
    workers.push_back(start_worker(ring, ledger, i % 2 == 0, lives++));
  for (int kill = 0; kill < kKills; ++kill) {
    ::usleep(static_cast<useconds_t>(random() % 2000));  // Paces the kills.
    const std::size_t i = random() % kWorkers;
    workers[i]->kill();
    workers[i] = start_worker(ring, ledger, i % 2 == 0, lives++);
    if (kill % 50 == 0) {  // The survivors go on.
      const std::uint64_t head = ring.head();
      ASSERT_TRUE(testing::eventually([&] { return ring.head() > head + 100; }))
          << "nobody takes anything after " << kill << " kills";
    }
  }
  workers.clear();

  // One more put settles what the last producer left; then all that was committed must come out.
  testing::Child last([&] { EXPECT_TRUE(put_number(ring, item_of(lives, 1), in_good_time())); });
  while (ledger.lives[lives].last.load() == 0)
    ASSERT_EQ(ring.take([&](RingItem item) { return check(ledger, item); }, in_good_time()),
              TakeResult::yes);
  EXPECT_EQ(last.join(), 0);
  EXPECT_EQ(ledger.torn, 0U);
  EXPECT_EQ(ledger.lost, 0U);
  EXPECT_EQ(ledger.twice, 0U);
  EXPECT_EQ(ring.size(), 0U);
  for (std::size_t life = 0; life < lives; ++life) {
    const std::uint64_t accepted = ledger.lives[life].last.load() & 0xff'ffff;
    EXPECT_GE(accepted, ledger.lives[life].returned.load()) << "life " << life;
    EXPECT_LE(accepted, ledger.lives[life].returned.load() + 1) << "life " << life;
  }
}

INSTANTIATE_TEST_SUITE_P(Bound, RingStorm, ::testing::Values(1, 10, 6000),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace onecopy
