// SPDX-License-Identifier: Apache-2.0
// Users of a KV pool that die at each named point and at random moments, beside a model of what must hold.
#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <map>
#include <random>
#include <set>
#include <span>
#include <thread>

#include <fmt/format.h>

#include "kv_pool_fixture.h"
#include "os/memfd.h"
#include "support/die_at.h"

namespace onecopy::store {
namespace {

using onecopy::testing::Child;
using onecopy::testing::Shared;

/// Checks that the namespaces have no lease of others, and that all blocks can be had.
void expect_whole(KvPoolBlocks& pool, int nth) {
  const KvPoolStats stats = pool.stats();
  ASSERT_EQ(stats.users, 1u) << nth;
  ASSERT_EQ(stats.leased, 0u) << nth;
  ASSERT_EQ(stats.free + stats.idle, stats.blocks) << nth;
  pool.pin(Keys{"pinned"}, 0);
  const Numbers all = pool.allocate(kBlocks);
  ASSERT_EQ(std::set(all.begin(), all.end()).size(), kBlocks);
  pool.release(all);
}

class AUserDies : public KvPoolTest, public ::testing::WithParamInterface<const char*> {};

TEST_P(AUserDies, AndAllItsBlocksAreFreeOrWhole) {
  for (int nth = 1; nth <= 6; ++nth) {
    Child child([&] {
      onecopy::testing::die_at(GetParam(), nth);
      for (int times = 0; times < 30; ++times) {
        KvPoolBlocks other(control_, {.block_bytes = 16, .space = "other"});
        KvPoolBlocks third(control_, {.block_bytes = 32, .space = "third"});
        other.release(
            other.allocate(4));  // these two take the extents of the first namespace, which takes one back
        third.release(third.allocate(2));
        const Numbers mine = pool_->allocate(3);
        pool_->put(fmt::format("{}", times), mine[0]);
        const Numbers writes{*pool_->write(Keys{"x"}, 1)[0]};
        pool_->join(pool_->tickets(writes));
        pool_->complete(writes, 0);
        pool_->find(Keys{"x"}, false);
        pool_->put("pinned", mine[1]);
        pool_->pin(Keys{"pinned"}, 1000);
        pool_->remove("x");
        pool_->release(mine);
        pool_->release(Numbers{writes[0], writes[0], writes[0]});
        Child([&] { pool_->allocate(1); }).join();
        pool_->stats();
        pool_->clear();
      }
    });
    const int end = child.join();
    ASSERT_TRUE(end == -SIGKILL || (nth > 1 && end == 0)) << nth << " " << end;
    expect_whole(*pool_, nth);
  }
}

INSTANTIATE_TEST_SUITE_P(Points, AUserDies,
                         ::testing::Values("kv_pool.begun", "kv_pool.ends", "kv_pool.attaches",
                                           "kv_pool.leased", "kv_pool.release.counted", "kv_pool.returned",
                                           "kv_pool.insert.written", "kv_pool.insert.done",
                                           "kv_pool.complete.marked", "kv_pool.finish.written",
                                           "kv_pool.find.leased", "kv_pool.remove.unlinked",
                                           "kv_pool.remove.gone", "kv_pool.dead.counted",
                                           "kv_pool.claim.grows", "kv_pool.grown", "kv_pool.extent.opens",
                                           "kv_pool.extent.vacated", "kv_pool.drain.block"));

/// The max number of units of eight bytes of a test's KV pool.
constexpr std::size_t kUnits = 96;

/// Counters that killed processes leave behind.
struct Counts {
  std::atomic<std::uint64_t> completed, seen, wrong, overwritten, without_memory;
  std::array<std::atomic<bool>, kUnits>
      has_memory;  ///< of the units of the pool, or of its blocks if these are larger
};

/// A process of an engine: writes keys whose bytes follow from the key, reads what it finds, and stamps blocks of its own.
/// REQUIRES: the memory holds all extents.
class Engine {
 public:
  /// An extent has as many records as units; a block has `units` of them.
  Engine(KvPoolBlocks& pool, std::byte* memory, Counts& counts, unsigned seed, std::size_t units = 1,
         std::size_t extent_units = kRecords)
      : pool_(pool),
        memory_(memory),
        counts_(counts),
        random_(seed),
        group_(seed | 1),
        units_(units),
        extent_units_(extent_units) {}

  void run(int steps) {
    for (int step = 0; step < steps; ++step) switch (random_() % 5) {
        case 0: write(); break;
        case 1: read(); break;
        case 2: stamp(); break;
        case 3:
          if (random_() % 8 == 0) remove();
          break;
        default: unstamp();
      }
    while (!stamps_.empty()) unstamp();
  }

 private:
  static constexpr std::uint64_t kMixed = 0x9e3779b97f4a7c15;

  std::string key() { return fmt::format("key {} of {}", random_() % 40, units_); }
  /// Returns the number of a block's first unit.
  std::size_t first_of(std::uint32_t number) const {
    return number / extent_units_ * extent_units_ + number % extent_units_ * units_;
  }
  std::span<std::uint64_t> at(std::uint32_t number) {
    return {reinterpret_cast<std::uint64_t*>(memory_) + first_of(number), units_};
  }
  bool is_all(std::uint32_t number, std::uint64_t value) {
    return std::ranges::all_of(at(number), [&](std::uint64_t unit) { return unit == value; });
  }
  /// A kill between the halves of a unit leaves a block that is half written.
  void fill(std::uint32_t number, std::uint64_t value) {
    for (std::uint64_t& unit : at(number)) {
      auto* const half = reinterpret_cast<std::uint32_t*>(&unit);
      std::memcpy(half, &value, 4);
      std::atomic_signal_fence(std::memory_order_seq_cst);
      std::memcpy(half + 1, reinterpret_cast<const std::byte*>(&value) + 4, 4);
    }
  }
  void expect_memory(std::uint32_t number) {
    for (std::size_t unit = 0; unit < units_; ++unit)
      counts_.without_memory += !counts_.has_memory.at(first_of(number) + unit);
  }
  static std::uint64_t bytes_of(const std::string& key) { return std::hash<std::string>()(key) * kMixed; }

  void write() {
    const Keys keys{key(), key()};
    const Found blocks = pool_.write(keys, group_);
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      if (!blocks[i]) continue;
      const Numbers one{*blocks[i]};
      expect_memory(one[0]);
      fill(one[0], bytes_of(keys[i]));
      ++counts_.completed;
      if (random_() % 8 != 0) pool_.complete(one, 0);
      pool_.release(one);
    }
  }
  void read() {
    const Keys keys{key(), key(), key()};
    const Found found = pool_.find(keys, true);
    for (std::size_t i = 0; i < found.size(); ++i) {
      if (!found[i]) continue;
      ++counts_.seen;
      if (!is_all(*found[i], bytes_of(keys[i]))) ++counts_.wrong;
      pool_.release(Numbers{*found[i]});
    }
  }
  void remove() try { pool_.remove(key()); } catch (const Error& error) {
    if (error.code() != ErrorCode::timeout) throw;
  }
  void stamp() try {
    const std::uint32_t block = pool_.allocate(1)[0];
    expect_memory(block);
    stamps_.emplace_back(block, random_());
    fill(block, stamps_.back().second);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::out_of_memory) throw;
  }
  void unstamp() {
    if (stamps_.empty()) return;
    const auto [block, stamp] = stamps_.back();
    if (!is_all(block, stamp)) ++counts_.overwritten;
    stamps_.pop_back();
    if (random_() % 4 == 0) {
      const std::string mine = key();
      fill(block, bytes_of(mine));
      ++counts_.completed;
      pool_.put(mine, block);
    }
    pool_.release(Numbers{block});
  }

  KvPoolBlocks& pool_;
  std::byte* const memory_;
  Counts& counts_;
  std::mt19937 random_;
  const std::uint32_t group_;
  const std::size_t units_, extent_units_;
  std::vector<std::pair<std::uint32_t, std::uint64_t>> stamps_;
};

/// ONECOPY_KV_POOL_KILLS kills instead of a few.
int kills() {
  const char* const text = std::getenv("ONECOPY_KV_POOL_KILLS");
  return text ? std::atoi(text) : 40;
}

/// The parameter says whether each block is populated for itself, and ahead by a thread; if not, an extent is one piece.
class KvPoolKillTest : public KvPoolTest, public ::testing::WithParamInterface<bool> {
 protected:
  KvPoolKillTest() {
    pool_.reset();
    control_ = KvPoolBlocks::make({2, kRecords, kRecords * block_bytes()});
    pool_.emplace(control_, KvPoolOptions{.block_bytes = block_bytes()}, populate());
  }
  static std::uint64_t block_bytes() { return GetParam() ? 1 << 20 : 8; }
  KvPopulate populate() const {
    return [counts = &*counts_](std::uint64_t offset, std::uint64_t bytes) {
      for (std::uint64_t at = offset; at < offset + bytes; at += block_bytes())
        counts->has_memory[at / block_bytes()] = true;
      return true;
    };
  }
  /// Returns false as long as this process believes that a stopped one holds the lock.
  bool can_look(KvPoolStats& stats) try {
    stats = pool_->stats();
    return true;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::timeout) throw;
    return false;
  }

  const Shared<Counts> counts_;
};

TEST_P(KvPoolKillTest, AProcessKilledAtAnyTimeLeavesNoPartOfABlockAndNoLease) {
  const Mapping memory = Mapping::of(create_memfd("blocks", 4096), 4096, Access::read_write);
  std::mt19937 random(::testing::UnitTest::GetInstance()->random_seed());
  Engine reader(*pool_, memory.data(), *counts_, 1);
  for (int round = 0; round < kills(); ++round) {
    const auto engine = [&] {
      KvPoolBlocks pool(control_, {.block_bytes = block_bytes()}, populate());
      for (unsigned seed = 1;; ++seed)
        Engine(pool, memory.data(), *counts_, static_cast<unsigned>(::getpid()) * 1000 + seed).run(1000);
    };
    Child one(engine), two(engine);
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
    reader.run(100);
    if (random() % 4 == 0) two.signal(SIGSTOP);
    one.kill();
    if (random() % 4 == 0) reader.run(20);
    two.kill();
    reader.run(100);
    KvPoolStats stats;
    ASSERT_TRUE(onecopy::testing::eventually([&] { return can_look(stats); }));
    ASSERT_EQ(stats.users, 1u);
    ASSERT_EQ(stats.leased, 0u);
    ASSERT_EQ(stats.free + stats.idle, stats.blocks);
    ASSERT_EQ(counts_->wrong, 0u);
    ASSERT_EQ(counts_->overwritten, 0u);
    ASSERT_EQ(counts_->without_memory, 0u);
  }
  EXPECT_GT(counts_->seen, 0u);
  EXPECT_LE(pool_->stats().stored, counts_->completed);
}

INSTANTIATE_TEST_SUITE_P(InPieces, KvPoolKillTest, ::testing::Bool());

/// Namespaces whose blocks have one, two and three units take extents from each other, while their users are killed.
class KvPoolsOfSeveralBlockSizes : public ::testing::Test {
 protected:
  static constexpr std::size_t kExtentUnits = 24, kExtents = kUnits / kExtentUnits;

  KvPoolBlocks open(std::size_t units) {
    return {control_,
            {.block_bytes = units * 8, .space = fmt::format("of {}", units)},
            [counts = &*counts_](std::uint64_t offset, std::uint64_t bytes) {
              for (std::uint64_t unit = offset / 8; unit < (offset + bytes) / 8; ++unit)
                counts->has_memory.at(unit) = true;
              return true;
            }};
  }
  /// Works in all namespaces in turn, a few steps in each.
  void run(std::byte* memory, unsigned seed, int turns) {
    std::array pools{open(1), open(2), open(3)};
    std::mt19937 random(seed);
    for (int turn = 0; turn < turns; ++turn) {
      const std::size_t units = 1 + random() % 3;
      Engine(pools[units - 1], memory, *counts_, static_cast<unsigned>(random()), units, kExtentUnits)
          .run(static_cast<int>(random() % 30));
    }
  }

  const Shared<Counts> counts_;
  const Fd control_ = KvPoolBlocks::make({kExtents, kExtentUnits, kExtentUnits * 8});
};

TEST_F(KvPoolsOfSeveralBlockSizes, GiveNoBytesOfOneAnotherWhenTheirUsersAreKilled) {
  const Mapping memory = Mapping::of(create_memfd("blocks", 4096), 4096, Access::read_write);
  std::mt19937 random(::testing::UnitTest::GetInstance()->random_seed());
  for (int round = 0; round < kills(); ++round) {
    const auto engine = [&] {
      for (unsigned seed = 1;; ++seed)
        run(memory.data(), static_cast<unsigned>(::getpid()) * 1000 + seed, 100);
    };
    Child one(engine), two(engine), third(engine);
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 6000));
    run(memory.data(), static_cast<unsigned>(random()), 20);
    for (Child* const child : {&one, &two, &third}) {
      child->kill();
      run(memory.data(), static_cast<unsigned>(random()), 5);
    }
    for (const std::size_t units : {1, 2, 3}) {
      const KvPoolStats stats = open(units).stats();
      ASSERT_EQ(stats.users, 1u);
      ASSERT_EQ(stats.leased, 0u);
      ASSERT_EQ(stats.free + stats.idle, stats.blocks);
    }
    ASSERT_EQ(counts_->wrong, 0u);
    ASSERT_EQ(counts_->overwritten, 0u);
    ASSERT_EQ(counts_->without_memory, 0u);
  }
  EXPECT_GT(counts_->seen, 0u);
}

/// One process, and a model of sets: each call answers what the model says.
TEST_F(KvPoolTest, ARandomProgramOfOneProcessSeesItsModel) {
  for (unsigned seed = 1; seed < 20; ++seed) {
    std::mt19937 random(seed);
    std::set<std::string> whole;
    std::map<std::string, std::uint32_t> writing;
    pool_->clear();
    for (int step = 0; step < 2000; ++step) {
      const std::string key(1, static_cast<char>('a' + random() % 6));
      const bool is_known = whole.contains(key) || writing.contains(key);
      switch (random() % 5) {
        case 0:
          if (const auto block = pool_->write(Keys{key}, writing.contains(key) ? 8 : 7)[0]) {
            ASSERT_FALSE(is_known);
            writing[key] = *block;
          } else {
            ASSERT_TRUE(is_known);
          }
          break;
        case 1:
          if (writing.contains(key)) {
            const bool completes = random() % 2 == 0;
            const Numbers one{writing[key]};
            completes ? pool_->complete(one, 0) : pool_->fail(one);
            pool_->release(one);
            writing.erase(key);
            if (completes) whole.insert(key);
          }
          break;
        case 2:
          if (const auto block = find(key)) {
            ASSERT_TRUE(whole.contains(key));
            pool_->release(Numbers{*block});
          } else {
            ASSERT_FALSE(whole.contains(key));
          }
          break;
        case 3: ASSERT_EQ(pool_->contains(Keys{key})[0] == KvPresence::whole, whole.contains(key)); break;
        default:
          if (writing.contains(key)) break;
          ASSERT_EQ(pool_->remove(key), whole.erase(key) == 1);
      }
      const KvPoolStats stats = pool_->stats();
      ASSERT_EQ(stats.idle, whole.size());
      ASSERT_EQ(stats.writing, writing.size());
      ASSERT_EQ(stats.free + stats.idle + stats.leased, stats.blocks);
    }
    for (const auto& [key, block] : writing) pool_->release(Numbers{block});
  }
}

}  // namespace
}  // namespace onecopy::store
