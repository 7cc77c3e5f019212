// SPDX-License-Identifier: Apache-2.0
#include "onecopy/share/share.h"

#include <cstring>

#include "onecopy/core/error.h"
#include "share/process.h"

namespace onecopy {
namespace {

/// Copies elements in row-major order, as long runs as the strides allow.
void copy_elements(std::byte*& to, const std::byte* from, const Layout& layout, std::size_t dim,
                   std::size_t run_dims, std::size_t run_bytes) {
  if (dim == run_dims) {
    std::memcpy(to, from, run_bytes);
    to += run_bytes;
    return;
  }
  const std::size_t step = static_cast<std::size_t>(layout.strides()[dim]) * size_of(layout.dtype());
  for (std::int64_t i = 0; i < layout.shape()[dim]; ++i)
    copy_elements(to, from + static_cast<std::size_t>(i) * step, layout, dim + 1, run_dims, run_bytes);
}

void copy_elements(std::byte* to, const TensorView& source) {
  const Layout& layout = source.layout;
  if (layout.numel() == 0) return;
  std::size_t run_bytes = size_of(layout.dtype());
  std::size_t run_dims = layout.ndim();  // dims from here on are one run
  while (run_dims > 0) {
    const std::size_t dim = run_dims - 1;
    const auto stride = static_cast<std::size_t>(layout.strides()[dim]) * size_of(layout.dtype());
    if (layout.shape()[dim] != 1 && stride != run_bytes) break;
    run_bytes *= static_cast<std::size_t>(layout.shape()[dim]);
    run_dims = dim;
  }
  copy_elements(to, static_cast<const std::byte*>(source.data), layout, 0, run_dims, run_bytes);
}

}  // namespace

Tensor empty(const Layout& layout, Device device) {
  if (!layout.is_contiguous())
    throw Error(ErrorCode::invalid_argument,
                "a new tensor is row-major; allocate it so and use with_layout() for other strides: " +
                    layout.str());
  auto [block, data] = Process::current().allocate(layout.nbytes(), device);
  return {std::move(block), data, layout, device, Access::read_write};
}

Tensor copy(const TensorView& source) {
  Tensor tensor = empty(Layout(source.layout.dtype(), source.layout.shape()), source.device);
  copy_elements(tensor.as<std::byte>(), source);
  return tensor;
}

Handle share(const Tensor& tensor) { return Process::current().share(tensor); }

Tensor open(const Handle& handle, Access access) {
  if (handle.is_bundle())
    throw Error(ErrorCode::bad_handle, "this handle names a bundle of tensors; open it with Bundle::open");
  if (handle.fields().is_queue())
    throw Error(ErrorCode::bad_handle, "this handle names a queue; open it with Queue::connect");
  return Process::current().open(handle.fields(), access);
}

Handle Handle::from_bytes(ByteSpan bytes) { return {decode_handle(bytes), BlockRef()}; }

std::string Handle::to_text() const { return onecopy::to_text(to_bytes()); }

Handle Handle::from_text(std::string_view text) { return from_bytes(onecopy::from_text(text)); }

}  // namespace onecopy
