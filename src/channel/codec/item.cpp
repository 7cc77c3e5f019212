// SPDX-License-Identifier: Apache-2.0
#include "channel/codec/item.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/throw_error.h"
#include "share/session.h"

namespace onecopy {
namespace {

/// The first bytes of every row.
struct RowStart {
  std::uint64_t generation_and_form;  ///< {generation:62, form:2}
  std::uint64_t tensor_offset;
  std::uint32_t block;
  std::uint16_t segment;
  std::uint8_t dtype;
  std::uint8_t ndim;
};
static_assert(sizeof(RowStart) == 24 && std::has_unique_object_representations_v<RowStart>);

struct OrderStart {
  ProcessId putter;
  std::uint32_t points;
};
static_assert(sizeof(OrderStart) == 20 && std::has_unique_object_representations_v<OrderStart>);

/// The forms of the dimensions that follow: sizes of 32 bits, sizes of 64 bits, or {size, stride} of 64 bits each.
enum Form : std::uint64_t { narrow = 0, wide = 1, strided = 2 };

std::size_t dim_bytes(std::uint64_t form) noexcept { return form == narrow ? 4 : form == wide ? 8 : 16; }

/// Returns the shortest form of the layout. Strides are left out only if the reader computes equal ones.
Form form_of(const Layout& layout) noexcept {
  const auto shape = layout.shape();
  const auto strides = layout.strides();
  Form form = narrow;
  std::int64_t stride = 1;
  for (std::size_t i = shape.size(); i-- > 0;) {
    if (strides[i] != stride) return strided;
    if (shape[i] > UINT32_MAX) form = wide;
    stride *= std::max<std::int64_t>(shape[i], 1);
  }
  return form;
}

template <class Size>
std::byte* store_sizes(std::span<const std::int64_t> shape, std::byte* out) noexcept {
  for (const std::int64_t n : shape) {
    write_value(out, static_cast<Size>(n));
    out += sizeof(Size);
  }
  return out;
}

template <class Size>
void load_sizes(const std::byte* from, std::span<std::int64_t> shape) noexcept {
  for (std::int64_t& n : shape) {
    Size size;
    copy_once(&size, from, sizeof size);
    n = static_cast<std::int64_t>(size);
    from += sizeof size;
  }
}

[[noreturn]] void refuse_item(const std::string& problem) {
  throw_error(ErrorCode::bad_handle, "This item of the queue {}.", problem);
}

[[noreturn]] void refuse_order(std::size_t points, std::uint16_t rows) {
  refuse_item(fmt::format("waits for {} streams with {} tensors", points, rows));
}

std::size_t max_points(std::uint16_t rows) { return std::max<std::size_t>(rows, kMaxValuePoints); }

void check(const ItemOrder& order, std::uint16_t rows) {
  const bool is_of_values = order.is_of_values();
  if (order.points.empty() || (!is_of_values && order.points.size() > max_points(rows)))
    refuse_order(order.points.size(), rows);
  for (const ItemPoint& point : order.points)
    if ((is_of_values ? point.row != kNoRow : point.row >= rows) || point.value == 0 ||
        point.value > kMaxHandleGeneration)
      refuse_item(fmt::format("waits for value {} of its tensor {}'s stream", point.value, point.row));
}

/// Reads a layout. The caller, which knows the block's size, checks the offset.
Layout read_layout(std::int64_t row, const RowStart& start, std::uint64_t form, const std::byte* dims) {
  const Subject subject{"tensor", row};
  if (form == strided)
    return checked_layout(subject, start.dtype, start.ndim, dims, start.tensor_offset, INT64_MAX);
  std::int64_t shape[kMaxDims];
  const std::span used(shape, start.ndim);
  form == narrow ? load_sizes<std::uint32_t>(dims, used) : load_sizes<std::uint64_t>(dims, used);
  try {
    return {static_cast<DType>(start.dtype), std::span<const std::int64_t>(used)};
  } catch (const Error& error) {
    refuse_item(fmt::format("describes a tensor that cannot be: {}", error.what()));
  }
}

}  // namespace

std::size_t encoded_size(const ItemRow& row) noexcept {
  if (row.segment == kWholeHandle) return sizeof(RowStart) + row.handle.size();
  return sizeof(RowStart) + row.layout.ndim() * dim_bytes(form_of(row.layout));
}

std::byte* encode(const ItemRow& row, std::byte* out) noexcept {
  if (row.segment == kWholeHandle) {
    write_value(out, RowStart{0, 0, static_cast<std::uint32_t>(row.handle.size()), kWholeHandle, 0, 0});
    return std::copy(row.handle.begin(), row.handle.end(), out + sizeof(RowStart));
  }
  const Form form = form_of(row.layout);
  write_value(out, RowStart{row.generation << 2 | form, row.tensor_offset, row.block, row.segment,
                            static_cast<std::uint8_t>(row.layout.dtype()),
                            static_cast<std::uint8_t>(row.layout.ndim())});
  out += sizeof(RowStart);
  const auto shape = row.layout.shape();
  if (form == narrow) return store_sizes<std::uint32_t>(shape, out);
  if (form == wide) return store_sizes<std::uint64_t>(shape, out);
  store_dims(row.layout, out);
  return out + 16 * shape.size();
}

std::size_t encoded_size(const ItemOrder& order) noexcept {
  return order.points.empty() ? 0 : sizeof(OrderStart) + order.points.size() * sizeof(ItemPoint);
}

std::byte* encode(const ItemOrder& order, std::byte* out) noexcept {
  write_value(out, OrderStart{order.putter, static_cast<std::uint32_t>(order.points.size())});
  out += sizeof(OrderStart);
  for (const ItemPoint& point : order.points) {
    write_value(out, point);
    out += sizeof point;
  }
  return out;
}

ItemReader::ItemReader(ByteSpan item) : rest_(item) {
  if (item.size() < sizeof head_) refuse_item(fmt::format("has only {} bytes", item.size()));
  copy_once(&head_, item.data(), sizeof head_);
  rest_ = rest_.subspan(sizeof head_);
  if ((head_.flags & ~kKnownItemFlags) != 0)
    refuse_item(fmt::format("has unknown flags {:#x}", head_.flags));
  if (is_elsewhere() && (head_.rows != 1 || head_.data_bytes != 0 || (head_.flags & kItemIsOrdered) != 0))
    refuse_item("says that it is elsewhere, and has something else in it");
}

ItemRow ItemReader::next_row() {
  RowStart start;
  if (rest_.size() < sizeof start) refuse_item(fmt::format("ends within its tensor {}", row_));
  copy_once(&start, rest_.data(), sizeof start);
  rest_ = rest_.subspan(sizeof start);
  const bool whole = start.segment == kWholeHandle;
  const std::uint64_t form = start.generation_and_form & 3;
  if (form > strided) refuse_item(fmt::format("writes its tensor {} in the unknown form {}", row_, form));
  if (start.ndim > kMaxDims) refuse_item(fmt::format("has a tensor of {} dimensions", start.ndim));
  const std::size_t follows = whole ? start.block : start.ndim * dim_bytes(form);
  if (rest_.size() < follows) refuse_item(fmt::format("ends within its tensor {}", row_));
  ItemRow row;
  row.segment = start.segment;
  if (whole) {
    row.handle = rest_.first(follows);
  } else {
    row.generation = start.generation_and_form >> 2;
    row.tensor_offset = start.tensor_offset;
    row.block = start.block;
    row.layout = read_layout(row_, start, form, rest_.data());
  }
  rest_ = rest_.subspan(follows);
  ++row_;
  return row;
}

ItemOrder ItemReader::order() {
  ItemOrder order;
  if ((head_.flags & kItemIsOrdered) == 0) return order;
  OrderStart start;
  if (rest_.size() < sizeof start) refuse_item("ends within its order");
  copy_once(&start, rest_.data(), sizeof start);
  rest_ = rest_.subspan(sizeof start);
  order.putter = start.putter;
  if (start.points > max_points(head_.rows) || rest_.size() < start.points * sizeof(ItemPoint))
    refuse_order(start.points, head_.rows);
  order.points.resize(start.points);
  copy_once(order.points.data(), rest_.data(), start.points * sizeof(ItemPoint));
  rest_ = rest_.subspan(start.points * sizeof(ItemPoint));
  check(order, head_.rows);
  return order;
}

ByteSpan ItemReader::data() const {
  if (rest_.size() != head_.data_bytes)
    refuse_item(fmt::format("has {} bytes of data where it announces {}", rest_.size(), head_.data_bytes));
  return rest_;
}

}  // namespace onecopy
