// SPDX-License-Identifier: Apache-2.0
#include "share/borrower/retained_segments.h"

#include <gtest/gtest.h>

#include <vector>

namespace onecopy {
namespace {

constexpr std::uint64_t kQueue = 77;

TEST(LocalQueues, HearHowManyProcessesUseThem) {
  std::vector<std::size_t> told;
  LocalQueues queues;
  queues.add(kQueue, {[] {
                        return std::optional(QueueProgress{0, 0});
                      },
                      [&](std::size_t users) { told.push_back(users); }});
  queues.report_users(kQueue, 3);
  queues.report_users(kQueue + 1, 9);
  EXPECT_EQ(told, std::vector<std::size_t>{3});
}

TEST(QueueMark, IsPassedOnceAllIsTakenThatHadBeenPutAtTheFirstLook) {
  QueueMark mark;
  EXPECT_FALSE(mark.is_passed_at({10, 7}));
  EXPECT_FALSE(mark.is_passed_at({20, 9}));
  EXPECT_TRUE(mark.is_passed_at({20, 10}));
  mark.reset();
  EXPECT_FALSE(mark.is_passed_at({20, 19}));
  EXPECT_TRUE(mark.is_passed_at({20, 20}));
}

class MarksOfQueues : public ::testing::Test {
 protected:
  /// Whether the queues' marks are waited for.
  bool drop_passed(bool closed_is_passed) {
    return queues_.drop_passed(marks_, closed_is_passed, [](QueueMark& mark) { return &mark; });
  }

  QueueProgress now_{2, 0};
  LocalQueues queues_;
  std::map<std::uint64_t, QueueMark> marks_{{kQueue, {}}, {kQueue + 1, {}}};
};

TEST_F(MarksOfQueues, AreDroppedOneByOneAsTheirQueuesPassThem) {
  queues_.add(kQueue, {[this] { return std::optional(now_); }, nullptr});
  queues_.add(kQueue + 1, {[] { return std::optional(QueueProgress{5, 0}); }, nullptr});
  EXPECT_TRUE(drop_passed(true));
  now_.taken = 2;
  EXPECT_TRUE(drop_passed(true));
  EXPECT_FALSE(marks_.contains(kQueue));
  EXPECT_TRUE(marks_.contains(kQueue + 1));
}

TEST_F(MarksOfQueues, OfClosedQueuesAreDroppedOrWaitedForAsTheCallerSays) {
  queues_.add(kQueue, {[] { return std::optional<QueueProgress>(); }, nullptr});
  EXPECT_TRUE(drop_passed(false));
  EXPECT_EQ(marks_.size(), 2u);
  EXPECT_FALSE(drop_passed(true)) << "neither a closed queue nor one that is not open here is waited for";
  EXPECT_TRUE(marks_.empty());
}

}  // namespace
}  // namespace onecopy
