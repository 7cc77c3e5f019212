// SPDX-License-Identifier: Apache-2.0
// Strategy file_system: a process's items in another's queue outlive it, and so does the file's name.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>

#include "conformance/scratch_directory.h"
#include "core/point.h"
#include "device/janitor.h"
#include "onecopy/channel/queue.h"
#include "onecopy/share/share.h"
#include "onecopy/share/stats.h"
#include "support/child.h"
#include "support/die_at.h"
#include "support/note.h"
#include "support/numbers.h"
#include "support/watchdog.h"

namespace onecopy {
namespace {

using testing::Child;
using testing::die_at;
using testing::eventually;
using testing::Note;
using testing::number_in;
using testing::Shared;
using testing::Watchdog;

/// How the process ends that has put an item.
enum class End { returns, exits, is_killed };

/// Named files in a directory of the test's own. Only `put_and_end` makes them.
class NamedDeposit : public ::testing::TestWithParam<End> {
 protected:
  static constexpr std::int64_t kLarge = 5 << 20;  // elements: a segment of its own

  void put_and_end(Queue& queue, std::int64_t count) {
    Child putter([&, handle = queue.handle()] {
      set_strategy(Strategy::file_system);
      if (GetParam() == End::is_killed) die_at("queue.put.done");
      {
        Queue theirs = Queue::connect(handle);
        theirs.put(testing::numbers(count, 7));
      }
      if (GetParam() == End::exits) std::exit(HasFailure() ? 1 : 0);  // its segments are unmapped
    });
    EXPECT_EQ(putter.join(), GetParam() == End::is_killed ? -SIGKILL : 0);
  }

  /// A starting process does it, the watch thread does, and a user may do.
  static void sweep() {
    collect();
    remove_abandoned_files();
    collect();
  }

  void expect_no_name_soon() {
    EXPECT_TRUE(eventually([&] { return directory_.files() == 0; })) << "nobody removed it";
  }

  Watchdog watchdog_;
  ScratchDirectory directory_;
};

TEST_P(NamedDeposit, KeepsItsNameUntilItIsTakenAndReleased) {
  Queue queue = Queue::create();
  put_and_end(queue, 1);
  EXPECT_EQ(directory_.files(), 1u) << "the only way to the memory is its name";
  sweep();
  EXPECT_EQ(directory_.files(), 1u);
  EXPECT_EQ(stats().deposits, 1u);
  {
    const Tensor tensor = queue.get_tensor();
    sweep();
    EXPECT_EQ(directory_.files(), 1u) << "it is in use here";
    EXPECT_EQ(number_in(tensor), 7);
  }
  expect_no_name_soon();
}

TEST_P(NamedDeposit, OfSeveralSegmentsEachIsKept) {
  Queue queue = Queue::create();
  put_and_end(queue, 1);
  put_and_end(queue, kLarge);
  sweep();
  EXPECT_EQ(directory_.files(), 2u);
  EXPECT_EQ(number_in(queue.get_tensor()), 7);
  sweep();
  EXPECT_EQ(number_in(queue.get_tensor()), 7);
  expect_no_name_soon();
}

TEST_P(NamedDeposit, AThirdProcessTakesItAndMayBeKilledWithIt) {
  Queue queue = Queue::create();
  put_and_end(queue, 1);
  sweep();
  Shared<Note> note;
  Child getter([&, handle = queue.handle()] {
    const Tensor tensor = Queue::connect(handle).get_tensor();
    EXPECT_EQ(number_in(tensor), 7);
    note->step = 1;
    note->serve_until(2);
  });
  note->reach(1);
  EXPECT_TRUE(eventually([] { return stats().deposits == 0; }));
  sweep();
  EXPECT_EQ(directory_.files(), 1u) << "the getter has it";
  getter.kill();
  EXPECT_TRUE(eventually([&] {
    collect();  // not the janitor: this process had it, and remembers the name
    return directory_.files() == 0;
  }));
}

TEST_P(NamedDeposit, IsGoneWithTheQueueThatNobodyRead) {
  {
    Queue queue = Queue::create();
    put_and_end(queue, 1);
    sweep();
    EXPECT_EQ(directory_.files(), 1u);
  }
  expect_no_name_soon();
}

/// The owner is dead and nothing of its is held here until the segment is mapped. The search for unneeded owners
/// closed it in between, and the segment stayed mapped, and named, for ever.
TEST_P(NamedDeposit, ASweepWhileItIsBeingOpenedKeepsNothing) {
  Queue queue = Queue::create();
  put_and_end(queue, 1);
  sweep();
  point_hook = [](const char* name) noexcept {
    if (std::string_view(name) == "open.mapped") collect();
  };
  EXPECT_EQ(number_in(queue.get_tensor()), 7);
  point_hook = nullptr;
  expect_no_name_soon();
}

INSTANTIATE_TEST_SUITE_P(Ends, NamedDeposit, ::testing::Values(End::returns, End::exits, End::is_killed),
                         [](const auto& end) {
                           return end.param == End::returns ? "Returns"
                                  : end.param == End::exits ? "Exits"
                                                            : "IsKilled";
                         });

}  // namespace
}  // namespace onecopy
