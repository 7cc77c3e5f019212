// SPDX-License-Identifier: Apache-2.0
#include "onecopy/core/layout.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "onecopy/core/error.h"

namespace onecopy {
namespace {

using Dims = std::vector<std::int64_t>;

constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();

Dims list(std::span<const std::int64_t> values) { return {values.begin(), values.end()}; }

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// The message of the invalid_argument that `make` throws.
std::string refusal(const std::function<void()>& make) {
  try {
    make();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.what();
  }
  ADD_FAILURE() << "the layout was accepted";
  return {};
}

TEST(Layout, RowMajorStridesCountElements) {
  const Layout layout(DType::f32, {2, 3, 4});
  EXPECT_EQ(layout.dtype(), DType::f32);
  EXPECT_EQ(layout.ndim(), 3u);
  EXPECT_EQ(list(layout.shape()), (Dims{2, 3, 4}));
  EXPECT_EQ(list(layout.strides()), (Dims{12, 4, 1}));
  EXPECT_EQ(layout.numel(), 24);
  EXPECT_EQ(layout.nbytes(), 96u);
  EXPECT_EQ(layout.extent_bytes(), 96u);
  EXPECT_TRUE(layout.is_contiguous());
}

TEST(Layout, WithoutDimensionsHoldsOneElement) {
  const Layout layout(DType::c128);
  EXPECT_EQ(layout.ndim(), 0u);
  EXPECT_TRUE(layout.shape().empty());
  EXPECT_EQ(layout.numel(), 1);
  EXPECT_EQ(layout.nbytes(), 16u);
  EXPECT_EQ(layout.extent_bytes(), 16u);
  EXPECT_TRUE(layout.is_contiguous());
  EXPECT_EQ(layout, Layout(DType::c128, Dims{}));
}

TEST(Layout, WithASizeOfZeroReachesNothing) {
  const Layout layout(DType::f64, {3, 0, 5});
  EXPECT_EQ(layout.numel(), 0);
  EXPECT_EQ(layout.nbytes(), 0u);
  EXPECT_EQ(layout.extent_bytes(), 0u);
  EXPECT_TRUE(layout.is_contiguous());
  EXPECT_EQ(list(layout.strides()), (Dims{5, 5, 1}));
}

TEST(Layout, ExtentEndsBehindTheLastElement) {
  EXPECT_EQ(Layout(DType::f32, {3, 2}, {4, 1}).extent_bytes(), 4u * (2 * 4 + 1 + 1));
  EXPECT_EQ(Layout(DType::f32, {3, 2}, {1, 3}).extent_bytes(), 24u);
  EXPECT_EQ(Layout(DType::i16, {5}, {10}).extent_bytes(), 2u * 41);
}

TEST(Layout, BroadcastDimensionsHaveManyElementsInFewBytes) {
  const Layout layout(DType::f32, {1000, 4}, {0, 1});
  EXPECT_EQ(layout.numel(), 4000);
  EXPECT_EQ(layout.extent_bytes(), 16u);
  EXPECT_FALSE(layout.is_contiguous());
}

TEST(Layout, IsContiguousWhateverTheStrideOfASingleElementIs) {
  EXPECT_TRUE(Layout(DType::u8, {4, 1, 3}, {3, 99, 1}).is_contiguous());
  EXPECT_TRUE(Layout(DType::u8, {1, 3}, {77, 1}).is_contiguous());
  EXPECT_FALSE(Layout(DType::u8, {2, 3}, {1, 2}).is_contiguous());
  EXPECT_FALSE(Layout(DType::u8, {2, 3}, {4, 1}).is_contiguous());
}

TEST(Layout, EmptyOneIsContiguousWhateverItsStrides) {
  EXPECT_TRUE(Layout(DType::u8, {0, 3}, {1, 7}).is_contiguous());
  EXPECT_TRUE(Layout(DType::u8, {3, 0}, {9, 7}).is_contiguous());
}

TEST(Layout, NegativeStridesAreRefusedAndTheMessageSaysWhatToDo) {
  const std::string why = refusal([] { Layout(DType::f32, {4, 4}, {4, -1}); });
  EXPECT_PRED2(contains, why, "stride -1 of dimension 1 is negative");
  EXPECT_PRED2(contains, why, "ascontiguousarray");
}

TEST(Layout, NegativeSizesAreRefused) {
  EXPECT_PRED2(contains, refusal([] {
                 Layout(DType::f32, {2, -3});
               }),
               "size -3 of dimension 1 is negative");
}

TEST(Layout, AsManyStridesAsSizesAreNeeded) {
  EXPECT_PRED2(contains, refusal([] { Layout(DType::f32, {2, 3}, {1}); }), "1 strides were given for 2");
}

TEST(Layout, UnknownDtypesAreRefused) {
  EXPECT_PRED2(contains, refusal([] { Layout(static_cast<DType>(77), {2}); }), "77");
}

TEST(Layout, MoreBytesThan63BitsCountAreRefused) {
  const char* limit = "more than 2^63 - 1 bytes";
  EXPECT_PRED2(contains, refusal([] { Layout(DType::u8, {kHuge, 2}); }), limit);
  EXPECT_PRED2(contains, refusal([] { Layout(DType::f32, {kHuge / 2}); }), limit);
  EXPECT_PRED2(contains, refusal([] { Layout(DType::u8, {0, kHuge, kHuge}); }), limit);
  EXPECT_EQ(Layout(DType::u8, {kHuge}).nbytes(), static_cast<std::size_t>(kHuge));
}

TEST(Layout, StridesThatReachTooFarAreRefused) {
  const char* limit = "more than 2^63 - 1 bytes";
  EXPECT_PRED2(contains, refusal([] { Layout(DType::u8, {3}, {kHuge}); }), limit);
  EXPECT_PRED2(contains, refusal([] { Layout(DType::u8, {2, 2}, {kHuge, kHuge}); }), limit);
  EXPECT_PRED2(contains, refusal([] { Layout(DType::f64, {2}, {kHuge / 4}); }), limit);
  EXPECT_PRED2(contains, refusal([] { Layout(DType::u8, {1 << 30, 1 << 30, 1 << 30}, {0, 0, 0}); }), limit);
  EXPECT_EQ(Layout(DType::u8, {2}, {kHuge - 1}).extent_bytes(), static_cast<std::size_t>(kHuge));
}

TEST(Layout, HasUpTo64Dimensions) {
  const Layout layout(DType::f32, Dims(64, 1));
  EXPECT_EQ(layout.ndim(), 64u);
  EXPECT_EQ(layout.numel(), 1);
  EXPECT_PRED2(contains, refusal([] { Layout(DType::f32, Dims(65, 1)); }), "at most 64");
}

TEST(Layout, CopiesAndMovesKeepEveryDimension) {
  for (std::size_t ndim : {0u, 1u, 3u, 4u, 64u}) {
    const Layout original(DType::i8, Dims(ndim, 1), Dims(ndim, 5));
    Layout copy = original;
    EXPECT_EQ(copy, original);
    Layout moved = std::move(copy);
    EXPECT_EQ(moved, original);
    Layout assigned(DType::f64, Dims(10, 2));
    assigned = moved;
    EXPECT_EQ(assigned, original);
    assigned = Layout(DType::f64, {7});
    assigned = std::move(moved);
    EXPECT_EQ(assigned, original);
    const Layout& itself = assigned;
    assigned = itself;
    EXPECT_EQ(assigned, original);
  }
}

TEST(Layout, IsEqualWhenDtypeShapeAndStridesAre) {
  const Layout layout(DType::f32, {2, 3});
  EXPECT_EQ(layout, Layout(DType::f32, {2, 3}, {3, 1}));
  EXPECT_NE(layout, Layout(DType::i32, {2, 3}));
  EXPECT_NE(layout, Layout(DType::f32, {3, 2}));
  EXPECT_NE(layout, Layout(DType::f32, {2, 3}, {1, 2}));
  EXPECT_NE(layout, Layout(DType::f32, {2, 3, 1}));
}

TEST(Layout, IsWrittenWithStridesOnlyWhenTheyMatter) {
  EXPECT_EQ(Layout(DType::f32, {3, 4}).str(), "float32[3, 4]");
  EXPECT_EQ(Layout(DType::f32, {3, 2}, {4, 2}).str(), "float32[3, 2] strides [4, 2]");
  EXPECT_EQ(Layout(DType::boolean).str(), "bool[]");
}

}  // namespace
}  // namespace onecopy
