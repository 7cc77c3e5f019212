// SPDX-License-Identifier: Apache-2.0
// pytorch#60626, #92134, #87861, #112470: "unable to mmap ... Cannot allocate memory (12)", which was
// vm.max_map_count: one mapping for each tensor. Ours are O(segments).
#include <gtest/gtest.h>

#include "onecopy/share/bundle.h"
#include "onecopy/share/share.h"
#include "support/child.h"
#include "support/footprint.h"
#include "support/limits.h"
#include "support/note.h"

namespace onecopy {
namespace {

using namespace testing;

TEST(MaxMapCount, ManyOpenTensorsNeedFewMappings) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's own mappings count as well";
  constexpr std::int64_t kTensors = 70'000;  // more than the default limit
  Shared<Note> note;
  Child owner([&] {
    const std::uint64_t before = count_mappings();
    std::vector<NamedTensor> tensors;
    for (std::int64_t i = 0; i < kTensors; ++i) tensors.emplace_back("", empty(Layout(DType::i64, {8})));
    const Handle handle = share_bundle(tensors);
    EXPECT_LT(count_mappings(), before + 64);
    note->write(handle.to_text());
    note->reach(2);
  });
  Child borrower([&] {
    const Handle handle = Handle::from_text(note->read());
    const std::uint64_t before = count_mappings();
    const Bundle bundle = Bundle::open(handle);
    std::vector<Tensor> held;
    for (std::size_t i = 0; i < bundle.size(); ++i) held.push_back(bundle.tensor(i));
    EXPECT_EQ(held.size(), static_cast<std::size_t>(kTensors));
    EXPECT_LT(count_mappings(), before + 64);
  });
  EXPECT_EQ(borrower.join(), 0);
  note->step = 2;
  EXPECT_EQ(owner.join(), 0);
}

}  // namespace
}  // namespace onecopy
