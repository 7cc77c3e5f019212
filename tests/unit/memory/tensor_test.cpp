// SPDX-License-Identifier: Apache-2.0
#include "onecopy/memory/tensor.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "counting_keeper.h"
#include "onecopy/core/error.h"

namespace onecopy {
namespace {

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
