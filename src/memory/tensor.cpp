// SPDX-License-Identifier: Apache-2.0
#include "onecopy/memory/tensor.h"

#include <vector>

#include "core/throw_error.h"

namespace onecopy {

Tensor BlockGroup::lend(const Tensor&) { return {}; }

Tensor::Tensor(BlockRef block, void* data, Layout layout, Device device, Access access) noexcept
    : block_(std::move(block)), data_(data), layout_(std::move(layout)), device_(device), access_(access) {}

Tensor Tensor::slice(std::size_t dim, std::int64_t begin, std::int64_t end) const {
  check_not_empty();
  if (dim >= layout_.ndim())
    throw_error(ErrorCode::invalid_argument, "cannot slice dimension {} of {}: it has {}", dim,
                layout_.str(), layout_.ndim());
  if (begin < 0 || end < begin || end > shape()[dim])
    throw_error(ErrorCode::invalid_argument,
                "cannot take [{}, {}) of dimension {} of {}: begin and end must be within [0, {}]", begin,
                end, dim, layout_.str(), shape()[dim]);
  std::vector<std::int64_t> sizes(shape().begin(), shape().end());
  sizes[dim] = end - begin;
  Layout part(dtype(), sizes, strides());
  // The first element of an empty part may lie past the end, so an empty part starts where the tensor starts.
  const std::size_t skipped =
      part.numel() == 0
          ? 0
          : static_cast<std::size_t>(begin) * static_cast<std::size_t>(strides()[dim]) * size_of(dtype());
  return Tensor(block_, static_cast<std::byte*>(data_) + skipped, std::move(part), device_, access_);
}

Tensor Tensor::with_layout(Layout layout, std::size_t offset_bytes) const {
  check_not_empty();
  const std::size_t reach = layout_.extent_bytes();
  if (offset_bytes > reach || layout.extent_bytes() > reach - offset_bytes)
    throw_error(ErrorCode::invalid_argument, "{} at byte {} reaches past the {} bytes of {}", layout.str(),
                offset_bytes, reach, layout_.str());
  return Tensor(block_, static_cast<std::byte*>(data_) + offset_bytes, std::move(layout), device_, access_);
}

TensorView Tensor::view() const {
  check_not_empty();
  return {data_, layout_, device_, access_};
}

void Tensor::check_not_empty() const {
  if (!block_)
    throw Error(ErrorCode::invalid_argument,
                "this tensor is empty: it was moved from, released, or never given memory");
}

void Tensor::refuse_as(std::size_t bytes) const {
  check_not_empty();
  throw_error(ErrorCode::invalid_argument,
              "{} does not have elements of this C++ type of {} bytes: use the type of its "
              "dtype, or static_cast<T*>(tensor.data()) to read its bytes as others",
              layout_.str(), bytes);
}

void Tensor::release() noexcept { *this = Tensor(); }

}  // namespace onecopy
