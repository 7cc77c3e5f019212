// SPDX-License-Identifier: Apache-2.0
#include "transport/tls/parcel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "onecopy/share/share.h"

namespace onecopy::transport {
namespace {
/// The locks of a connection are held during each piece, so that pieces must be small.
TEST(AParcel, CopiesTensorsInPiecesWhileTheirBytesAreSent) {
  constexpr std::size_t kFrame = 16 << 10, kPiece = 64 << 10;
  std::mt19937 random(4711);
  for (int round = 0; round < 8; ++round) {
    Message message;
    message.data = Bytes(100, std::byte{1});
    Bytes expected = message.data;
    for (const std::int64_t size : {1 << 20, 0, 3, 700'001}) {
      Tensor& tensor = message.tensors.emplace_back(empty(Layout(DType::u8, {size})));
      std::generate_n(tensor.as<std::uint8_t>(), size, std::ref(random));
      expected.insert(expected.end(), tensor.as<std::byte>(), tensor.as<std::byte>() + size);
    }
    std::vector<Tensor> written = message.tensors;
    Parcel parcel(std::move(message));
    Bytes sent;
    parcel.next(kFrame);  // the shapes
    const auto send = [&] {
      const auto part = parcel.next(kFrame);
      if (part) sent.insert(sent.end(), part->bytes.begin(), part->bytes.end());
      return part.has_value();
    };
    const unsigned frames_between = random() % 8;
    do {
      for (unsigned i = 0; i < frames_between; ++i) send();
    } while (!parcel.keep(kPiece));
    for (const Tensor& tensor : written) std::fill_n(tensor.as<std::byte>(), tensor.nbytes(), std::byte{0});
    while (send()) continue;
    ASSERT_EQ(sent, expected) << round;
  }
}

TEST(AParcel, CopiesNoMoreAtOnceThanItIsTold) {
  constexpr int kPieces = 16;
  constexpr std::size_t kPiece = 64 << 10;
  Message message;
  message.tensors.push_back(empty(Layout(DType::u8, {kPieces * kPiece})));
  Parcel parcel(std::move(message));
  int calls = 1;
  while (!parcel.keep(kPiece)) ++calls;
  EXPECT_GE(calls, kPieces);
}

/// Such a message waits behind large ones, so its sender asks for a copy of what the frame has a copy of already.
TEST(AParcel, OfOneFrameHasNothingToCopy) {
  Message message;
  message.tensors.push_back(empty(Layout(DType::u8, {10})));
  Parcel parcel(std::move(message));
  ASSERT_TRUE(parcel.is_whole());
  EXPECT_TRUE(parcel.keep(1));
  EXPECT_EQ(parcel.next(100)->kind, FrameKind::whole);
  EXPECT_FALSE(parcel.next(100));
}

}  // namespace
}  // namespace onecopy::transport
