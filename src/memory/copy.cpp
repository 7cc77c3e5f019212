// SPDX-License-Identifier: Apache-2.0
#include "onecopy/memory/copy.h"

#include <cstring>

#include "core/throw_error.h"
#include "device/backend.h"

namespace onecopy {

namespace {

void check(const TensorView& from, const TensorView& to) {
  const auto a = from.layout.shape();
  const auto b = to.layout.shape();
  if (from.layout.dtype() != to.layout.dtype() || !std::equal(a.begin(), a.end(), b.begin(), b.end()))
    throw_error(ErrorCode::invalid_argument, "cannot copy {} to {}: dtype and shape must be the same",
                from.layout.str(), to.layout.str());
  if (to.access == Access::read_only)
    throw Error(ErrorCode::read_only, "cannot copy to a tensor that was opened read-only");
}

/// The innermost dimensions that are contiguous on both sides.
struct Run {
  std::size_t first_dim;
  std::size_t bytes;
};

Run longest_run(const Layout& from, const Layout& to) {
  Run run{from.ndim(), size_of(from.dtype())};
  while (run.first_dim > 0) {
    const std::size_t dim = run.first_dim - 1;
    const auto in_run = [&](const Layout& layout) {
      const auto stride = static_cast<std::size_t>(layout.strides()[dim]) * size_of(layout.dtype());
      return layout.shape()[dim] == 1 || stride == run.bytes;
    };
    if (!in_run(from) || !in_run(to)) break;
    run.bytes *= static_cast<std::size_t>(from.shape()[dim]);
    run.first_dim = dim;
  }
  return run;
}

/// Calls copy_run(to, from) for each run, in row-major order.
template <class CopyRun>
void for_each_run(std::byte* to, const std::byte* from, const TensorView& target, const TensorView& source,
                  const Run& run, std::size_t dim, const CopyRun& copy_run) {
  if (dim == run.first_dim) return copy_run(to, from);
  const std::size_t element = size_of(target.layout.dtype());
  const std::size_t to_step = static_cast<std::size_t>(target.layout.strides()[dim]) * element;
  const std::size_t from_step = static_cast<std::size_t>(source.layout.strides()[dim]) * element;
  for (std::int64_t i = 0; i < target.layout.shape()[dim]; ++i)
    for_each_run(to + static_cast<std::size_t>(i) * to_step, from + static_cast<std::size_t>(i) * from_step,
                 target, source, run, dim + 1, copy_run);
}

template <class CopyRun>
void copy_runs(const TensorView& from, const TensorView& to, const Run& run, const CopyRun& copy_run) {
  if (from.layout.numel() == 0) return;
  for_each_run(static_cast<std::byte*>(to.data), static_cast<const std::byte*>(from.data), to, from, run, 0,
               copy_run);
}

}  // namespace

void copy_into(const TensorView& from, const TensorView& to, Stream stream) {
  check(from, to);
  const Run run = longest_run(from.layout, to.layout);
  if (from.device == kCpu && to.device == kCpu)
    return copy_runs(from, to, run,
                     [&](std::byte* at, const std::byte* source) { std::memcpy(at, source, run.bytes); });
  copy_runs(from, to, run, [&](std::byte* at, const std::byte* source) {
    copy_bytes({at, to.device, source, from.device, run.bytes}, stream);
  });
}

void copy_into(const TensorView& from, const TensorView& to) {
  copy_into(from, to, Stream{});
  const Device at = to.device == kCpu ? from.device : to.device;
  if (at != kCpu) backend(at.type).synchronize(at.index, {});
}

}  // namespace onecopy
