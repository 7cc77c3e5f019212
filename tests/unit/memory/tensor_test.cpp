// SPDX-License-Identifier: Apache-2.0
#include "onecopy/memory/tensor.h"

#include <gtest/gtest.h>

#include <atomic>
#include <complex>
#include <functional>
#include <numeric>
#include <vector>

#include "counting_keeper.h"
#include "onecopy/core/error.h"
#include "support/refusal.h"

namespace onecopy {
namespace {

using testing::expect_refusal;

struct TensorTest : ::testing::Test {
  TensorTest() { std::iota(memory.begin(), memory.end(), 0.f); }
  Tensor make(Layout layout) {
    return Tensor(keeper.make(), memory.data(), std::move(layout), kCpu, Access::read_write);
  }

  CountingKeeper keeper;
  std::vector<float> memory = std::vector<float>(24);
};

std::vector<std::int64_t> copy(std::span<const std::int64_t> values) {
  return {values.begin(), values.end()};
}

TEST_F(TensorTest, KeepsItsBlockWhileACopyLives) {
  {
    Tensor tensor = make(Layout(DType::f32, {2, 3, 4}));
    EXPECT_EQ(keeper.references, 1);
    const Tensor another = tensor;
    EXPECT_EQ(keeper.references, 2);
    tensor.release();
    EXPECT_FALSE(tensor);
    EXPECT_EQ(tensor.data(), nullptr);
    EXPECT_TRUE(another);
    EXPECT_EQ(keeper.references, 1);
  }
  EXPECT_EQ(keeper.references, 0);
}

TEST_F(TensorTest, ASliceIsTheSameMemory) {
  const Tensor tensor = make(Layout(DType::f32, {2, 3, 4}));
  const Tensor part = tensor.slice(1, 1, 3);
  EXPECT_EQ(keeper.references, 2);
  EXPECT_EQ(copy(part.shape()), (std::vector<std::int64_t>{2, 2, 4}));
  EXPECT_EQ(copy(part.strides()), (std::vector<std::int64_t>{12, 4, 1}));
  EXPECT_EQ(part.as<float>()[0], 4.f);
  EXPECT_EQ(part.slice(0, 1, 2).slice(2, 3, 4).as<float>()[0], 12.f + 4 + 3);
}

TEST_F(TensorTest, AsReturnsElementsOfItsDTypeOrBytes) {
  const Tensor tensor = make(Layout(DType::f32, {2, 3, 4}));
  EXPECT_EQ(tensor.as<const float>()[5], 5.f);
  EXPECT_EQ(tensor.as<std::byte>(), tensor.data());
  EXPECT_EQ(tensor.as<const unsigned char>(), tensor.data());
  EXPECT_EQ(tensor.as<std::atomic<float>>()->load(), 0.f);
  expect_refusal(ErrorCode::invalid_argument, {"float32[2, 3, 4]", "8 bytes", "data()"},
                 [&] { tensor.as<double>(); });
  expect_refusal(ErrorCode::invalid_argument, {}, [&] { tensor.as<std::int32_t>(); });
  expect_refusal(ErrorCode::invalid_argument, {}, [&] { tensor.as<std::complex<double>>(); });
}

TEST_F(TensorTest, ARowOfBytesHoldsAnObjectThatFitsIntoIt) {
  struct Frame {
    std::uint64_t number;
    double time;
  };
  const Tensor bytes = make(Layout(DType::u8, {16}));
  EXPECT_EQ(bytes.as<Frame>(), bytes.data());
  expect_refusal(ErrorCode::invalid_argument, {}, [&] { bytes.slice(0, 0, 15).as<Frame>(); });
  expect_refusal(ErrorCode::invalid_argument, {},
                 [&] { bytes.slice(0, 4, 8).with_layout(Layout()).as<Frame>(); });
  expect_refusal(ErrorCode::invalid_argument, {}, [&] { bytes.as<std::uint64_t>(); });
}

TEST_F(TensorTest, AnEmptyTensorHasNoBytesAndRefusesWhatNeedsMemory) {
  Tensor moved_from = make(Layout(DType::f32, {24})), taken = make(Layout(DType::f32, {24}));
  const Tensor moved_to = std::move(moved_from);
  { const BlockRef block = taken.take_block(); }
  for (const Tensor& empty : {Tensor(), moved_from, taken}) {
    EXPECT_FALSE(empty);
    EXPECT_EQ(empty.nbytes(), 0u);
    EXPECT_EQ(empty.data(), nullptr);
    for (const std::function<void()>& use : std::initializer_list<std::function<void()>>{
             [&] { empty.as<float>(); }, [&] { empty.as<std::byte>(); }, [&] { empty.view(); },
             [&] { empty.slice(0, 0, 0); }, [&] { empty.with_layout(Layout()); }})
      expect_refusal(ErrorCode::invalid_argument, {"empty", "moved from"}, use);
  }
  EXPECT_EQ(moved_to.nbytes(), 96u);
}

TEST(ElementType, IsTheArithmeticTypeOfTheDTypesKindAndSize) {
  struct Half {
    std::uint16_t bits;
  };
  static_assert(is_element_type<bool>(DType::boolean) && !is_element_type<bool>(DType::u8));
  static_assert(is_element_type<std::uint8_t>(DType::u8) && !is_element_type<std::uint8_t>(DType::i8));
  static_assert(is_element_type<std::int8_t>(DType::i8) && is_element_type<std::int16_t>(DType::i16));
  static_assert(is_element_type<std::int32_t>(DType::i32) && !is_element_type<std::int32_t>(DType::u32));
  static_assert(is_element_type<std::uint64_t>(DType::u64) &&
                is_element_type<unsigned long long>(DType::u64));
  static_assert(is_element_type<long>(DType::i64) && is_element_type<long long>(DType::i64));
  static_assert(is_element_type<float>(DType::f32) && is_element_type<double>(DType::f64));
  static_assert(!is_element_type<float>(DType::i32) && !is_element_type<double>(DType::c64));
  static_assert(is_element_type<std::complex<float>>(DType::c64) &&
                !is_element_type<std::complex<float>>(DType::c128));
  static_assert(is_element_type<std::uint16_t>(DType::f16) && is_element_type<Half>(DType::bf16));
  static_assert(!is_element_type<std::int16_t>(DType::f16) && is_element_type<const float>(DType::f32));
}

TEST_F(TensorTest, AnEmptySliceStaysInsideTheMemory) {
  const Tensor tensor = make(Layout(DType::f32, {24}));
  const Tensor none = tensor.slice(0, 24, 24);
  EXPECT_EQ(none.layout().numel(), 0);
  EXPECT_EQ(none.data(), tensor.data());
}

TEST_F(TensorTest, RefusesSlicesThatDoNotExist) {
  const Tensor tensor = make(Layout(DType::f32, {2, 3, 4}));
  EXPECT_THROW(tensor.slice(3, 0, 1), Error);
  EXPECT_THROW(tensor.slice(0, -1, 1), Error);
  EXPECT_THROW(tensor.slice(0, 0, 3), Error);
  EXPECT_THROW(tensor.slice(1, 2, 1), Error);
  EXPECT_THROW(make(Layout(DType::f32)).slice(0, 0, 1), Error);
}

TEST_F(TensorTest, AnotherLayoutMustStayInsideOfWhatTheTensorReaches) {
  const Tensor tensor = make(Layout(DType::f32, {4, 6}));
  const Tensor bytes = tensor.with_layout(Layout(DType::u8, {95}), 1);
  EXPECT_EQ(static_cast<std::byte*>(bytes.data()), static_cast<std::byte*>(tensor.data()) + 1);
  EXPECT_EQ(keeper.references, 2);
  EXPECT_THROW(tensor.with_layout(Layout(DType::u8, {96}), 1), Error);
  EXPECT_THROW(tensor.with_layout(Layout(DType::f64, {13})), Error);
  EXPECT_THROW(tensor.with_layout(Layout(DType::u8), 96), Error);
  EXPECT_THROW(tensor.with_layout(Layout(DType::u8), ~std::size_t{0}), Error);
  EXPECT_NO_THROW(tensor.with_layout(Layout(DType::u8, {0}), 96));
}

TEST_F(TensorTest, AStridedTensorReachesOnlyToItsLastElement) {
  const std::int64_t shape[] = {2, 2};
  const std::int64_t strides[] = {8, 2};
  const Tensor tensor = make(Layout(DType::f32, shape, strides));
  EXPECT_NO_THROW(tensor.with_layout(Layout(DType::f32, {11})));
  EXPECT_THROW(tensor.with_layout(Layout(DType::f32, {12})), Error);
}

TEST_F(TensorTest, AViewSaysTheSameWithoutKeepingAnythingAlive) {
  Tensor tensor(keeper.make(), memory.data(), Layout(DType::f32, {24}), kCpu, Access::read_only);
  const TensorView view = tensor.view();
  EXPECT_EQ(view.data, memory.data());
  EXPECT_EQ(view.layout, tensor.layout());
  EXPECT_EQ(view.access, Access::read_only);
  tensor.release();
  EXPECT_EQ(keeper.references, 0);
}

}  // namespace
}  // namespace onecopy
