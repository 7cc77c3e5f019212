// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <utility>

#include "onecopy/core/tensor_view.h"
#include "onecopy/memory/block.h"

namespace onecopy {

/// A strided array on a block, which the tensor keeps alive. Copying copies the reference, not the data. Thread safety:
/// as a value; the data is shared memory, and its users synchronise their accesses.
class Tensor {
 public:
  Tensor() = default;
  /// Constructs a tensor. `data` points at element 0 inside the memory that `block` keeps alive.
  Tensor(BlockRef block, void* data, Layout layout, Device device, Access access) noexcept;

  const Layout& layout() const noexcept { return layout_; }
  DType dtype() const noexcept { return layout_.dtype(); }
  std::span<const std::int64_t> shape() const noexcept { return layout_.shape(); }
  std::span<const std::int64_t> strides() const noexcept { return layout_.strides(); }
  std::size_t nbytes() const noexcept { return layout_.nbytes(); }
  Device device() const noexcept { return device_; }
  Access access() const noexcept { return access_; }
  const BlockRef& block() const noexcept { return block_; }

  /// Returns the address of element 0. A write through the pointer of a read-only tensor raises SIGSEGV.
  void* data() const noexcept { return data_; }
  template <class T>
  T* as() const noexcept {
    return static_cast<T*>(data_);
  }

  TensorView view() const { return {data_, layout_, device_, access_}; }

  /// Returns the part [begin, end) of dimension `dim`, on the same block. Throws invalid_argument.
  Tensor slice(std::size_t dim, std::int64_t begin, std::int64_t end) const;
  /// Returns a tensor with another layout on the same block, `offset_bytes` after element 0. Throws invalid_argument if
  /// it would reach beyond the bytes of this tensor.
  Tensor with_layout(Layout layout, std::size_t offset_bytes = 0) const;

  /// Releases the reference. The tensor is empty afterwards.
  void release() noexcept;
  /// Returns the reference. The tensor is empty afterwards.
  BlockRef take_block() noexcept { return std::move(block_); }
  explicit operator bool() const noexcept { return static_cast<bool>(block_); }

 private:
  BlockRef block_;
  void* data_ = nullptr;
  Layout layout_;
  Device device_;
  Access access_ = Access::read_write;
};

}  // namespace onecopy
