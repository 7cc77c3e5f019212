// SPDX-License-Identifier: Apache-2.0
#include "support/footprint.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>

#include "onecopy/share/stats.h"
#include "share/runtime/runtime.h"
#include "support/eventually.h"

namespace onecopy::testing {
namespace {

std::uint64_t count_lines(const char* part) {
  std::ifstream maps("/proc/self/maps");
  std::uint64_t lines = 0;
  for (std::string line; std::getline(maps, line);) lines += line.find(part) != std::string::npos;
  return lines;
}

/// Counts the turns of this process's watch thread.
class Turns {
 public:
  Turns() {
    if (!count_) return;
    count_->is_wanted = true;
    count_->timer->request();
  }
  Turns(const Turns&) = delete;
  Turns& operator=(const Turns&) = delete;
  ~Turns() {
    if (count_) count_->is_wanted = false;
  }
  /// Waits until the watch thread has handled everything that happened before the call.
  void wait() const {
    if (!count_) return;
    const int wanted = count_->made + 2;
    EXPECT_TRUE(eventually([&] { return count_->made >= wanted; })) << "the watch thread does nothing";
  }

 private:
  struct Count {
    std::atomic<int> made{0};
    std::atomic<bool> is_wanted{false};
    std::optional<Timer> timer{};
  };
  /// Returns the Count of the process, which is never freed.
  static Count* count_of(Runtime* process) {
    static std::map<Runtime*, Count*> counts;
    if (!process) return nullptr;
    Count*& count = counts[process];
    if (count) return count;
    count = new Count;
    count->timer.emplace(Session::current().loop(), [count] {
      ++count->made;
      return count->is_wanted ? Timer::Pause(Timer::kAtOnce) : Timer::Pause();
    });
    return count;
  }

  Runtime* const process_ = Runtime::existing();
  Count* const count_ = count_of(process_);
};

}  // namespace

Footprint Footprint::now() {
  const Stats s = stats();
  return {s.descriptors,
          count_lines("onecopy-") - count_lines("onecopy-timeline"),
          s.foreign_segments,
          s.owners,
          s.leases,
          s.live_blocks,
          s.limbo,
          s.deposits};
}

Footprint Footprint::settled() {
  EXPECT_TRUE(eventually([] {
    collect();
    const Stats s = stats();
    return s.owners == 0 && s.limbo == 0 && s.deposits == 0 && s.in_transit == 0;
  }));
  return unchanging();
}

Footprint Footprint::unchanging() {
  constexpr int kLooks = 10;
  const Turns turns;
  Footprint last;
  int same = 0;
  EXPECT_TRUE(eventually([&] {
    turns.wait();
    collect();
    const Footprint next = now();
    same = next == last ? same + 1 : 0;
    last = next;
    return same >= kLooks;
  }));
  return last;
}

// An owner has a claim page for each borrower, and its watch thread makes one more for the next borrower.
Footprint Footprint::settled_owner(std::uint64_t borrowers) {
  EXPECT_TRUE(eventually([&] { return stats().borrowers == borrowers; }));
  settled();  // no pages of its former owners
  EXPECT_TRUE(eventually([&] { return count_lines("onecopy-claims") == borrowers + 1; }));
  return unchanging();
}

void expect_soon(const Footprint& footprint) {
  const bool is_reached = eventually([&] {
    collect();
    return Footprint::now() == footprint;
  });
  if (!is_reached) {
    EXPECT_EQ(Footprint::now(), footprint);
  }
}

std::ostream& operator<<(std::ostream& out, const Footprint& f) {
  return out << "{descriptors " << f.descriptors << ", mappings " << f.mappings << ", foreign segments "
             << f.foreign_segments << ", owners " << f.owners << ", leases " << f.leases << ", live blocks "
             << f.live_blocks << ", limbo " << f.limbo << ", deposits " << f.deposits << "}";
}

std::uint64_t address_space() {
  std::uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

std::uint64_t count_mappings() { return count_lines(""); }

std::uint64_t count_files(const char* directory) {
  std::error_code absent;
  std::uint64_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(directory, absent)) {
    (void)entry;
    ++files;
  }
  return files;
}

}  // namespace onecopy::testing
