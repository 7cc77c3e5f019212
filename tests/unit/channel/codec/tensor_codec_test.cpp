// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "channel/codec/tensor_packer.h"
#include "channel/codec/tensor_unpacker.h"
#include "onecopy/share/share.h"
#include "support/refusal.h"
#include "unit/channel/ring/ring_testing.h"

namespace onecopy {
namespace {

using testing::expect_refusal;

class TensorCodecTest : public ::testing::Test {
 protected:
  TensorCodecTest() { directory_.describe(79, false); }

  /// An item of `rows` tensors, as a queue writes it.
  static Bytes item_of(const Manifest& manifest) {
    ItemHead head;
    head.rows = static_cast<std::uint16_t>(manifest.rows().size());
    head.flags = manifest.order.points.empty() ? 0 : kItemIsOrdered;
    Bytes item(sizeof head + manifest.bytes());
    write_value(item.data(), head);
    EXPECT_EQ(manifest.write(item.data() + sizeof head), item.data() + item.size());
    return item;
  }
  std::optional<Manifest> pack(std::span<const Tensor> tensors) {
    return packer_.pack(session_, {session_, tensors, {}}, {kForever});
  }

  Session& session_ = Session::current();
  Ring ring_{RingOptions{}};
  SegmentDirectory directory_{ring_};
  TensorPacker packer_{ring_, directory_, session_.id()};
  TensorUnpacker unpacker_{directory_, {session_.id(), session_.id()}};
};

TEST_F(TensorCodecTest, UnpacksTheTensorsThatWerePacked) {
  const Tensor whole = empty(Layout(DType::f32, {6, 4}));
  const Tensor other = empty(Layout(DType::u8, {3}));
  const std::vector<Tensor> tensors{whole, other};
  const Bytes bytes = item_of(*pack(tensors));
  ItemReader item(bytes);
  UnpackedTensors unpacked;
  unpacker_.unpack(session_, item, unpacked);
  ASSERT_EQ(unpacked.size(), 2U);
  EXPECT_EQ(unpacked.row(0).layout(), whole.layout());
  EXPECT_EQ(unpacked.row(0).data(), whole.data());
  EXPECT_EQ(unpacked.row(1).data(), other.data());
}

TEST_F(TensorCodecTest, AsksNobodyOnceASegmentIsOpen) {
  const Tensor tensor = empty(Layout(DType::u8, {64}));
  const Bytes bytes = item_of(*pack({&tensor, 1}));
  UnpackedTensors unpacked;
  ItemReader first(bytes);
  EXPECT_FALSE(unpacker_.try_unpack(session_, first, unpacked));
  ItemReader second(bytes);
  unpacker_.unpack(session_, second, unpacked);
  unpacked.clear();
  ItemReader third(bytes);
  EXPECT_TRUE(unpacker_.try_unpack(session_, third, unpacked));
  EXPECT_EQ(unpacked.first.data(), tensor.data());
}

TEST_F(TensorCodecTest, NamesATensorWithoutTheCreatorOnlyWhenItsSegmentIsKnown) {
  const Tensor tensor = empty(Layout(DType::u8, {64}));
  EXPECT_FALSE(packer_.pack(session_, {session_, {&tensor, 1}, {}}, {kNow, false}));
  packer_.prepare(session_, {&tensor, 1}, kForever);
  EXPECT_TRUE(packer_.pack(session_, {session_, {&tensor, 1}, {}}, {kNow, false}));
}

TEST_F(TensorCodecTest, RefusesARowOfASegmentThatWasNeverEntered) {
  const Tensor tensor = empty(Layout(DType::u8, {64}));
  const Bytes bytes = item_of(*pack({&tensor, 1}));
  Ring ring{RingOptions{}};
  SegmentDirectory strange(ring);
  strange.describe(80, false);
  TensorUnpacker unpacker(strange, {session_.id(), session_.id()});
  ItemReader item(bytes);
  UnpackedTensors unpacked;
  expect_refusal(ErrorCode::bad_handle, {}, [&] { unpacker.unpack(session_, item, unpacked); });
}

}  // namespace
}  // namespace onecopy
