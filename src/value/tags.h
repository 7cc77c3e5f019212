// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

/// The wire format of values, which Writer and Reader share, described in docs/design/formats/python-message-v1.md.
namespace onecopy::value {

/// The depth to which values may be nested.
inline constexpr int kMaxDepth = 32;

/// The first byte of a value. The short forms hold a number in their low bits.
enum Tag : std::uint8_t {
  kSmallInt = 0x00,    ///< 0 to 127
  kShortStr = 0x80,    ///< 0 to 31 bytes
  kShortTuple = 0xa0,  ///< 0 to 15 values
  kShortList = 0xb0,   ///< 0 to 7 values
  kShortDict = 0xb8,   ///< 0 to 7 pairs
  kNone = 0xc0,
  kFalse = 0xc1,
  kTrue = 0xc2,
  kInt8 = 0xc3,
  kInt16 = 0xc4,
  kInt32 = 0xc5,
  kInt64 = 0xc6,
  kLongInt = 0xc7,
  kFloat = 0xc8,
  kComplex = 0xc9,
  kStr = 0xca,      ///< u8 length
  kLongStr = 0xcb,  ///< u32 length, numbered
  kBytes = 0xcc,
  kLongBytes = 0xcd,
  kTuple = 0xce,
  kList = 0xcf,
  kDict = 0xd0,
  kTensor = 0xd1,        ///< u8 flags: the next tensor of the message; numbered
  kAgain = 0xd2,         ///< u32 number of an object before it
  kInlineTensor = 0xd3,  ///< u8 flags, u8 dtype, u8 dimensions, i64 each, the elements row-major; numbered
  kCardTensor = 0xd4,    ///< u8 flags, u8 number of the card that it is for: the next tensor; numbered
  kObject = 0xd5,        ///< u8 length and text of its kind, u32 count, its parts; numbered behind them
};

inline constexpr std::size_t kMaxShortText = 31;
inline constexpr std::size_t kMaxShortTuple = 15;
inline constexpr std::size_t kMaxShortItems = 7;  ///< the max number of items of a short list or dict

/// The flags of a tensor: bit 0 says that it is a torch tensor; the harmless bits do not change its elements.
inline constexpr std::uint8_t kTorchTensor = 1;
inline constexpr std::uint8_t kHarmlessFlags = 7;
inline constexpr std::uint8_t kNumpyArray = 32;

/// The low bits of the tag of a queue's message of the kind `python`.
enum Form : std::uint32_t {
  kTensorForm = 1,  ///< one tensor; its flags are in the upper 24 bits
  kValuesForm = 2,
  kPickleForm = 3,
};
inline constexpr std::uint32_t kFormMask = 0x7f;
inline constexpr std::uint32_t kDataIsTensor = 0x80;  ///< the data lies in the last tensor, a row of u8
inline constexpr int kFlagsShift = 8;

/// Flags of a row of u8 that is not a tensor: a large bytes, str (in UTF-8) or bytearray. No other flag may be set.
inline constexpr std::uint8_t kBytesRow = 0x40, kTextRow = 0x80, kByteArrayRow = 0xc0;
inline constexpr std::uint8_t kRowFlags = 0xc0;

}  // namespace onecopy::value
