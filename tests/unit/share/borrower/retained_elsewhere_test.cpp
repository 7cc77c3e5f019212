// SPDX-License-Identifier: Apache-2.0
#include "share/borrower/segment_retention.h"

#include <gtest/gtest.h>

namespace onecopy {
namespace {

class RetainedElsewhereTest : public ::testing::Test {
 protected:
  RetainedElsewhereTest() {
    elsewhere_.on_news = [this] { ++news_; };
  }
  /// Whether keepers have to hear of it.
  bool retire(const SegmentKey& key) {
    const int before = news_;
    elsewhere_.retire(key);
    return news_ != before;
  }
  bool release_all_of(const std::string& owner) {
    const int before = news_;
    elsewhere_.release_all_of(owner);
    return news_ != before;
  }

  int news_ = 0;
  RetainedElsewhere elsewhere_;
  const SegmentKey key_{"0123456789abcdef0123456789abcdef", 3};
};

TEST_F(RetainedElsewhereTest, AllKeepersHearOfASegmentThatEnds) {
  const ProcessId one{1}, two{2};
  elsewhere_.add(key_, one);
  EXPECT_TRUE(retire(key_));
  elsewhere_.add(key_, two);  // before a keeper could be told
  EXPECT_TRUE(retire(key_));
  EXPECT_FALSE(retire(key_));
  EXPECT_EQ(elsewhere_.take_retired(), (std::map<SegmentKey, std::set<ProcessId>>{{key_, {one, two}}}));
}

/// Its segments end without a word to this process, and notes about them would stay for ever.
TEST_F(RetainedElsewhereTest, SegmentsOfAnOwnerOfWhichThisProcessHoldsNothingAreReleased) {
  const SegmentKey other{"fedcba9876543210fedcba9876543210", 3};
  for (const SegmentKey& key : {key_, {key_.first, 9}, other}) elsewhere_.add(key, ProcessId{1});
  EXPECT_TRUE(release_all_of(key_.first));
  EXPECT_FALSE(retire(key_));
  EXPECT_FALSE(retire({key_.first, 9}));
  EXPECT_TRUE(retire(other));
  std::vector<Release> told = elsewhere_.take_releases();
  ASSERT_EQ(told.size(), 2u);
  EXPECT_EQ(told[0].segment, key_);
  EXPECT_EQ(told[0].keeper, ProcessId{1});
  EXPECT_LT(told[0].number, told[1].number);
  EXPECT_TRUE(elsewhere_.take_releases().empty());
  elsewhere_.release_later(std::move(told[0]));
  EXPECT_EQ(elsewhere_.take_releases().size(), 1u);
  EXPECT_FALSE(release_all_of(key_.first));
}

}  // namespace
}  // namespace onecopy
