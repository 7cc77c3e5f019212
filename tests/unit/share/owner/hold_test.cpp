// SPDX-License-Identifier: Apache-2.0
// Handles that are written down, within one process.
#include <gtest/gtest.h>

#include "onecopy/core/error.h"
#include "onecopy/share/bundle.h"
#include "onecopy/share/share.h"
#include "onecopy/share/stats.h"
#include "share/runtime/runtime.h"
#include "support/numbers.h"
#include "support/refusal.h"

namespace onecopy {
namespace {

using testing::expect_refusal;
using testing::number;
using testing::number_in;

/// The bytes of a held handle, and nothing else that keeps the tensor.
Bytes hold_number(std::int64_t n) { return hold(share(number(n))).to_bytes(); }

std::uint64_t holds() {
  std::uint64_t count = 0;
  for (const TransitInfo& info : this_owner().in_transit) count += info.where == "handle";
  return count;
}

void expect_stale(const Bytes& bytes) {
  expect_refusal(ErrorCode::stale_handle, {"freed before the handle was opened"},
                 [&] { open(Handle::from_bytes(bytes)); });
}

TEST(Hold, KeepsABlockThatNobodyElseKeeps) {
  const Bytes bytes = hold_number(7);
  for (int i = 0; i < 100; ++i) number(99);  // would reuse the memory
  EXPECT_EQ(number_in(open(Handle::from_bytes(bytes))), 7);
}

TEST(Hold, EndsWithTheFirstOpenInTheSameProcess) {
  const Bytes bytes = hold_number(7);
  EXPECT_EQ(holds(), 1u);
  const Tensor first = open(Handle::from_bytes(bytes));
  EXPECT_EQ(holds(), 0u);
  EXPECT_EQ(open(Handle::from_bytes(bytes)).data(), first.data()) << "the tensor itself keeps the block";
}

TEST(Hold, IsStaleAfterwards) {
  const Bytes bytes = hold_number(7);
  open(Handle::from_bytes(bytes));
  expect_stale(bytes);
}

TEST(Hold, IsOneForEachCall) {
  const Handle handle = share(number(7));
  const Handle first = hold(handle);
  const Handle second = hold(handle);
  EXPECT_NE(first.fields().hold, second.fields().hold);
  EXPECT_EQ(handle.fields().hold, 0u);
  EXPECT_EQ(holds(), 2u);
  open(first);
  EXPECT_EQ(holds(), 1u);
  open(first);
  EXPECT_EQ(holds(), 1u) << "the second open of the same bytes ends nothing";
  open(second);
  EXPECT_EQ(holds(), 0u);
}

TEST(Hold, CanBeEndedWithoutAnOpen) {
  const Bytes bytes = hold_number(7);
  const Handle handle = Handle::from_bytes(bytes);
  end_hold(handle);
  end_hold(handle);
  end_hold(Handle());
  EXPECT_EQ(holds(), 0u);
  expect_stale(bytes);
}

TEST(Hold, IsInTransitUntilItExpires) {
  const auto before = stats().in_transit;
  const Bytes bytes = hold_number(7);
  EXPECT_EQ(stats().in_transit, before + 1);
  Session::current().holds().expire(Holds::Clock::now() + Holds::kLifetime);
  EXPECT_EQ(stats().in_transit, before);
  expect_stale(bytes);
}

TEST(Hold, TravelsAsText) {
  const std::string text = hold(share(number(8))).to_text();
  EXPECT_EQ(number_in(open(Handle::from_text(text))), 8);
  EXPECT_EQ(holds(), 0u);
}

TEST(Hold, OfABundleKeepsAllOfItUntilTheFirstOpen) {
  std::string text;
  {
    const std::vector<NamedTensor> tensors{{"a", number(1)}, {"b", number(2)}};
    text = hold(share_bundle(tensors)).to_text();
  }
  const Bundle bundle = Bundle::open(Handle::from_text(text));
  EXPECT_EQ(holds(), 0u);
  EXPECT_EQ(number_in(bundle.tensor(1)), 2);
}

TEST(Hold, OfBytesOrTextIsRefusedWithAWayOut) {
  const Tensor tensor = number(7);
  const Handle handle = Handle::from_bytes(share(tensor).to_bytes());
  expect_refusal(ErrorCode::invalid_argument, {"keeps nothing alive", "share() returned"},
                 [&] { hold(handle); });
  expect_refusal(ErrorCode::invalid_argument, {}, [] { hold(Handle()); });
  EXPECT_EQ(holds(), 0u);
}

}  // namespace
}  // namespace onecopy
