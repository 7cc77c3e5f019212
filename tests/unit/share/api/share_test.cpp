// SPDX-License-Identifier: Apache-2.0
#include "onecopy/share/share.h"

#include <gtest/gtest.h>

#include "onecopy/core/error.h"
#include "onecopy/share/bundle.h"
#include "onecopy/share/stats.h"
#include "support/refusal.h"

namespace onecopy {
namespace {

using testing::expect_refusal;

ErrorCode code_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& e) {
    return e.code();
  }
  return ErrorCode{255};
}

TEST(Share, AHandleOpenedByItsOwnerIsTheSameMemory) {
  Tensor tensor = empty(Layout(DType::f32, {3, 4}));
  tensor.as<float>()[5] = 7;
  const Tensor again = open(Handle::from_bytes(share(tensor).to_bytes()));
  EXPECT_EQ(again.data(), tensor.data());
  EXPECT_EQ(again.layout(), tensor.layout());
}

TEST(Share, AHandleKeepsItsBlockAlive) {
  Handle handle = share(empty(Layout(DType::i64, {8})));
  EXPECT_TRUE(open(handle));
}

TEST(Share, BytesWrittenDownHoldNothing) {
  const Bytes bytes = share(empty(Layout(DType::i64, {8}))).to_bytes();
  EXPECT_EQ(code_of([&] { open(Handle::from_bytes(bytes)); }), ErrorCode::stale_handle);
}

TEST(Share, AStaleHandleStaysStaleWhenItsBlockIsReused) {
  const Bytes bytes = share(empty(Layout(DType::i64, {8}))).to_bytes();
  const Handle next = share(empty(Layout(DType::i64, {8})));
  EXPECT_EQ(next.fields().block, decode_handle(bytes).block);
  EXPECT_EQ(code_of([&] { open(Handle::from_bytes(bytes)); }), ErrorCode::stale_handle);
}

TEST(Share, ForeignMemoryIsRefusedWithAWayOut) {
  EXPECT_EQ(code_of([] { share(Tensor()); }), ErrorCode::invalid_argument);
}

TEST(Share, CopyMakesAnyStridesRowMajor) {
  std::vector<std::int32_t> values(24);
  for (int i = 0; i < 24; ++i) values[i] = i;
  const std::int64_t shape[] = {3, 4};
  const std::int64_t strides[] = {1, 6};
  const Tensor tensor = copy({values.data(), Layout(DType::i32, shape, strides), kCpu});
  for (int i = 0; i < 3; ++i)
    for (int j = 0; j < 4; ++j) EXPECT_EQ(tensor.as<std::int32_t>()[i * 4 + j], i + 6 * j);
}

TEST(Share, ABundleGivesBackNamesLayoutsAndMemory) {
  std::vector<NamedTensor> tensors;
  for (int i = 0; i < 100; ++i)
    tensors.emplace_back("layer." + std::to_string(i), empty(Layout(DType::f32, {2, 3})));
  const Handle handle = share_bundle(tensors);
  const Bundle bundle = Bundle::open(Handle::from_text(handle.to_text()));
  ASSERT_EQ(bundle.size(), 100u);
  EXPECT_EQ(bundle.name(42), "layer.42");
  EXPECT_EQ(bundle.tensor(*bundle.find("layer.42")).data(), tensors[42].second.data());
}

TEST(Share, ABundleRefusesEqualAndEmptyNames) {
  const Tensor a = empty(Layout(DType::u8, {10})), b = empty(Layout(DType::u8, {10}));
  const std::uint64_t before = stats().live_blocks;
  expect_refusal(ErrorCode::invalid_argument, {"tensors 0 and 2", "\"w\""}, [&] {
    share_bundle(std::vector<NamedTensor>{{"w", a}, {"v", b}, {"w", b}});
  });
  expect_refusal(ErrorCode::invalid_argument, {"tensor 1", "no name"}, [&] {
    share_bundle(std::vector<NamedTensor>{{"w", a}, {"", b}});
  });
  EXPECT_EQ(stats().live_blocks, before);
}

TEST(Share, ABundleThatWasMovedFromThrows) {
  const Handle handle = share_bundle(std::vector<NamedTensor>{{"a", empty(Layout(DType::u8, {10}))}});
  Bundle bundle = Bundle::open(handle);
  const Bundle other = std::move(bundle);
  EXPECT_EQ(other.size(), 1u);
  for (const std::function<void()>& use : std::initializer_list<std::function<void()>>{
           [&] { bundle.size(); }, [&] { bundle.name(0); }, [&] { bundle.layout(0); },
           [&] { bundle.tensor(0); }, [&] { bundle.tensors(0); }, [&] { bundle.find("a"); },
           [&] { bundle.structure(); }})
    expect_refusal(ErrorCode::closed, {"moved from"}, use);
}

TEST(Share, ABundleKeepsItsTensorsAliveAndThenLetsGo) {
  const std::uint64_t before = stats().live_blocks;
  {
    Handle handle = share_bundle(std::vector<NamedTensor>{{"a", empty(Layout(DType::u8, {10}))}});
    const Bundle bundle = Bundle::open(handle);
    EXPECT_EQ(bundle.tensor(0).nbytes(), 10u);
  }
  EXPECT_EQ(stats().live_blocks, before);
}

}  // namespace
}  // namespace onecopy
