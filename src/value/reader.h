// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "onecopy/core/bytes.h"
#include "onecopy/core/error.h"
#include "onecopy/core/layout.h"
#include "value/hash_cost.h"
#include "value/small_vector.h"
#include "value/tags.h"

namespace onecopy::value {

/// Throws bad_handle for bytes that no Writer writes.
[[noreturn]] inline void refuse(const std::string& problem) {
  throw Error(ErrorCode::bad_handle, "a value of another process cannot be read: " + problem);
}

/// Returns whether a tensor of this layout can be a row of bytes: see kBytesRow.
inline bool is_row(const Layout& layout) {
  return layout.dtype() == DType::u8 && layout.ndim() == 1 && layout.is_contiguous();
}

/// Reads one value, and makes its objects through a sink. Checks the bytes before it makes an object of them.
///
/// A Sink has a type `Object`, and these functions: none(), boolean(bool), integer(int64), long_integer(ByteSpan), real(d),
/// complex(d, d), text(ByteSpan), bytes(ByteSpan); tensor(index, flags), card_tensor(index, flags, card),
/// inline_tensor(flags, Layout, ByteSpan); unfinished(), for a reference to a container without begun(); list(count, next, begun), dict(count, next, begun), tuple(count, next),
/// object(kind, count, next). `next()` reads the next item; dict() calls it twice for each pair. `begun(Object)` is called for a
/// container that its own items may refer to.
/// Thread safety: a reader belongs to one thread.
template <class Sink>
class Reader {
 public:
  using Object = typename Sink::Object;

  /// Constructs a reader. `tensors` is the number of tensors that came with the bytes.
  Reader(ByteSpan data, std::size_t tensors, Sink& sink)
      : rest_(data), tensors_(tensors), sink_(sink), key_parts_left_(max_key_parts(data.size())) {}

  /// Reads the only value. Throws bad_handle, and what the sink throws.
  Object read_all() {
    Object value = read(0);
    if (!rest_.empty()) refuse(std::to_string(rest_.size()) + " bytes follow it");
    if (next_tensor_ != tensors_)
      refuse("nothing refers to " + std::to_string(tensors_ - next_tensor_) + " of its tensors");
    return value;
  }

 private:
  Object read(int depth) {
    cost_ = {};
    const auto byte = number<std::uint8_t>();
    if (byte < kShortStr) return sink_.integer(byte);
    if (byte < kShortTuple) return sink_.text(take(byte - kShortStr));
    if (byte < kShortList) return read_tuple(byte - kShortTuple, depth);
    if (byte < kShortDict) return read_list(byte - kShortList, depth);
    if (byte < kNone) return read_dict(byte - kShortDict, depth);
    return byte < kStr ? read_number(static_cast<Tag>(byte)) : read_long(static_cast<Tag>(byte), depth);
  }

  Object read_number(Tag tag) {
    switch (tag) {
      case kNone: return sink_.none();
      case kFalse: return sink_.boolean(false);
      case kTrue: return sink_.boolean(true);
      case kInt8: return sink_.integer(number<std::int8_t>());
      case kInt16: return sink_.integer(number<std::int16_t>());
      case kInt32: return sink_.integer(number<std::int32_t>());
      case kInt64: return sink_.integer(number<std::int64_t>());
      case kLongInt: return sink_.long_integer(take(number<std::uint32_t>()));
      case kFloat: return sink_.real(number<double>());
      default: {
        const auto real = number<double>();
        return sink_.complex(real, number<double>());
      }
    }
  }

  Object read_long(Tag tag, int depth) {
    switch (tag) {
      case kStr: return sink_.text(take(number<std::uint8_t>()));
      case kLongStr: return numbered(sink_.text(take(number<std::uint32_t>())));
      case kBytes: return sink_.bytes(take(number<std::uint8_t>()));
      case kLongBytes: return numbered(sink_.bytes(take(number<std::uint32_t>())));
      case kTuple: return read_tuple(number<std::uint32_t>(), depth);
      case kList: return read_list(number<std::uint32_t>(), depth);
      case kDict: return read_dict(number<std::uint32_t>(), depth);
      case kTensor: {
        const auto flags = number<std::uint8_t>();
        return numbered(sink_.tensor(next_tensor(), flags));
      }
      case kAgain: return read_again();
      case kInlineTensor: return read_inline();
      case kCardTensor: {
        const auto flags = number<std::uint8_t>();
        const auto card = number<std::uint8_t>();
        return numbered(sink_.card_tensor(next_tensor(), flags, card));
      }
      case kObject: return read_object(depth);
      default: refuse("its byte " + std::to_string(tag) + " means nothing");
    }
  }

  Object read_tuple(std::size_t count, int depth) {
    check_count(count, 1, depth);
    const std::size_t at = begin_numbered();
    HashCost cost = HashCost::of_container();
    return finish(at, sink_.tuple(count, [&] { return read_part(depth, cost); }), cost);
  }
  Object read_list(std::size_t count, int depth) {
    check_count(count, 1, depth);
    const std::size_t at = begin_numbered();
    return finish(at, sink_.list(
                          count, [&] { return read(depth + 1); },
                          [&](const Object& list) { numbered_[at].object = list; }));
  }
  Object read_dict(std::size_t count, int depth) {
    check_count(count, 2, depth);
    const std::size_t at = begin_numbered();
    bool is_key = false;
    const auto next = [&] {
      is_key = !is_key;
      return is_key ? read_key(depth + 1) : read(depth + 1);
    };
    return finish(at, sink_.dict(count, next, [&](const Object& dict) { numbered_[at].object = dict; }));
  }
  Object read_object(int depth) {
    const ByteSpan kind = take(number<std::uint8_t>());
    const auto count = number<std::uint32_t>();
    check_count(count, 1, depth);
    HashCost cost = HashCost::of_container();
    Object object = sink_.object({reinterpret_cast<const char*>(kind.data()), kind.size()}, count,
                                 [&] { return read_part(depth, cost); });
    return finish(begin_numbered(), std::move(object), cost);
  }

  /// Reads an item of a container whose hash needs the item's hash.
  Object read_part(int depth, HashCost& cost) {
    Object part = read(depth + 1);
    cost.add(cost_);
    return part;
  }
  Object read_key(int depth) {
    Object key = read(depth);
    if (cost_.parts > key_parts_left_) refuse("its keys have too many parts to be hashed");
    key_parts_left_ -= cost_.parts;
    return key;
  }

  /// Reads a tensor. Layout checks dtype and shape, and take() that the elements are there.
  Object read_inline() {
    const auto flags = number<std::uint8_t>();
    const auto dtype = static_cast<DType>(number<std::uint8_t>());
    const auto ndim = number<std::uint8_t>();
    if (!is_valid(dtype)) refuse("a tensor has an unknown dtype");
    const ByteSpan sizes = take(ndim * sizeof(std::int64_t));
    std::vector<std::int64_t> shape(ndim);
    if (ndim != 0) std::memcpy(shape.data(), sizes.data(), sizes.size());
    std::optional<Layout> layout;
    try {
      layout.emplace(dtype, shape);
    } catch (const Error&) {
      refuse("a tensor has an impossible shape");
    }
    return numbered(sink_.inline_tensor(flags, *layout, take(layout->nbytes())));
  }

  Object read_again() {
    const auto before = number<std::uint32_t>();
    if (before >= numbered_.size()) refuse("it refers to an object that is not there");
    if (!numbered_[before].object) return sink_.unfinished();
    cost_ = numbered_[before].cost;
    return *numbered_[before].object;
  }

  ByteSpan take(std::size_t size) {
    if (rest_.size() < size) refuse("it is cut off");
    const ByteSpan taken = rest_.first(size);
    rest_ = rest_.subspan(size);
    return taken;
  }
  template <class T>
  T number() {
    return load<T>(take(sizeof(T)).data());
  }
  std::size_t next_tensor() {
    if (next_tensor_ == tensors_) refuse("it has fewer tensors than it refers to");
    return next_tensor_++;
  }
  /// Refuses a count for which too few bytes are left, so that a false count allocates no memory. REQUIRES: every item
  /// takes at least `bytes`.
  void check_count(std::size_t count, std::size_t bytes, int depth) const {
    if (count > rest_.size() / bytes) refuse("a container is longer than the message");
    if (depth == kMaxDepth) refuse("it is nested too deeply");
  }
  std::size_t begin_numbered() {
    numbered_.emplace_back();
    return numbered_.size() - 1;
  }
  Object finish(std::size_t at, Object object, HashCost cost = {}) {
    if (cost.height > kMaxDepth) refuse("it is nested too deeply, through references");
    numbered_[at] = {object, cost};
    cost_ = cost;
    return object;
  }
  Object numbered(Object object) { return finish(begin_numbered(), std::move(object)); }

  static constexpr std::size_t kUsualObjects = 8;

  ByteSpan rest_;
  const std::size_t tensors_;
  Sink& sink_;
  std::size_t next_tensor_ = 0;
  struct Numbered {
    std::optional<Object> object;  ///< empty while the items of a container are being read
    HashCost cost;
  };
  SmallVector<Numbered, kUsualObjects> numbered_;
  HashCost cost_;  ///< the cost of the value that was read last
  std::uint64_t key_parts_left_;
};

}  // namespace onecopy::value
