// SPDX-License-Identifier: Apache-2.0
// pytorch#973 "received 0 items of ancdata", #11201, #65198, #165532 "Too many open files": one
// descriptor for each tensor that is kept. Ours are O(segments).
#include <gtest/gtest.h>

#include <sstream>

#include "onecopy/share/bundle.h"
#include "onecopy/share/share.h"
#include "onecopy/share/stats.h"
#include "support/child.h"
#include "support/footprint.h"
#include "support/limits.h"
#include "support/note.h"

namespace onecopy {
namespace {

using namespace testing;

constexpr std::int64_t kTensors = 10'000;

TEST(Ancdata, TenThousandTensorsAreHeldWith64Descriptors) {
  const Limit limit(RLIMIT_NOFILE, 64);
  Shared<Note> note;
  JoinedChild owner([&] {
    std::vector<NamedTensor> tensors;
    for (std::int64_t i = 0; i < kTensors; ++i) {
      tensors.emplace_back(std::to_string(i), empty(Layout(DType::i64, {16})));
      tensors.back().second.as<std::int64_t>()[15] = i;
    }
    const Handle handle = share_bundle(tensors);
    EXPECT_LT(Footprint::now().descriptors, 40u);
    note->write(handle.to_text());
    note->reach(2);
  });
  Child borrower([&] {
    const Bundle bundle = Bundle::open(Handle::from_text(note->read()));
    std::vector<Tensor> held;
    for (std::size_t i = 0; i < bundle.size(); ++i) held.push_back(bundle.tensor(i));
    ASSERT_EQ(held.size(), static_cast<std::size_t>(kTensors));
    for (std::int64_t i = 0; i < kTensors; ++i)
      ASSERT_EQ(held[static_cast<std::size_t>(i)].as<std::int64_t>()[15], i);
    EXPECT_EQ(Footprint::now().leases, static_cast<std::uint64_t>(kTensors) + 1);  // and the bundle's table
    EXPECT_LT(Footprint::now().descriptors, 40u);
  });
  EXPECT_EQ(borrower.join(), 0);
  note->step = 2;
}

/// The test with one handle a tensor, as batches of a data loader arrive.
TEST(Ancdata, TenThousandHandlesOpenedOneByOneNeedNoMoreDescriptors) {
  const Limit limit(RLIMIT_NOFILE, 64);
  Shared<Note> note;
  Child owner([&] {
    std::vector<Tensor> kept;
    for (int round = 0; round < 100; ++round) {
      std::string batch;
      for (int i = 0; i < 20; ++i) {  // as many as the note holds
        kept.push_back(empty(Layout(DType::i32, {4})));
        kept.back().as<std::int32_t>()[3] = round * 20 + i;
        batch += share(kept.back()).to_text() + "\n";
      }
      ASSERT_LT(batch.size(), sizeof note->text);
      note->write(batch, 2 * round + 1);
      note->reach(2 * round + 2);
    }
  });
  std::vector<Tensor> held;
  std::uint64_t after_first = 0;
  for (int round = 0; round < 100; ++round) {
    std::istringstream batch(note->read(2 * round + 1));
    for (std::string text; std::getline(batch, text);) {
      held.push_back(open(Handle::from_text(text)));
      EXPECT_EQ(held.back().as<std::int32_t>()[3], static_cast<int>(held.size()) - 1);
    }
    if (round == 0) after_first = Footprint::unchanging().descriptors;
    note->step = 2 * round + 2;
  }
  EXPECT_EQ(held.size(), 2000u);
  EXPECT_TRUE(eventually([&] { return stats().descriptors == after_first; }));
  EXPECT_EQ(owner.join(), 0);
}

}  // namespace
}  // namespace onecopy
