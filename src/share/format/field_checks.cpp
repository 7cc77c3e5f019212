// SPDX-License-Identifier: Apache-2.0
#include "share/format/field_checks.h"

#include "core/throw_error.h"

namespace onecopy {
namespace {

struct Dim {
  std::int64_t size;
  std::int64_t stride;
};
static_assert(sizeof(Dim) == 16);

/// Applies the rules of Layout. Messages name the subject that is being checked.
Layout make_layout(const Subject& subject, std::uint8_t dtype, std::span<const std::int64_t> shape,
                   std::span<const std::int64_t> strides) {
  try {
    return Layout(static_cast<DType>(dtype), shape, strides);
  } catch (const Error& error) {
    refuse(subject, "describes a tensor that cannot be: {}", error.what());
  }
}

}  // namespace

void refuse_for(const Subject& subject, const std::string& problem) {
  const std::string who = subject.number < 0
                              ? fmt::format("This {}", subject.kind)
                              : fmt::format("{} {} of this bundle", subject.kind, subject.number);
  throw_error(ErrorCode::bad_handle, "{} {}.", who, problem);
}

void check_segment(const Subject& subject, std::uint8_t device_type, const Uuid& device, std::uint8_t kind,
                   std::uint32_t segment, std::uint64_t segment_size) {
  if (device_type < 1 || device_type > 3)
    refuse(subject, "names device type {}, which does not exist", device_type);
  if (kind < 1 || kind > 9) refuse(subject, "names segment kind {}, which does not exist", kind);
  const auto type = static_cast<DeviceType>(device_type);
  if (onecopy::device_type(static_cast<SegmentKind>(kind)) != type)
    refuse(subject, "contradicts itself: segment kind {} is not memory of a {} device", kind, name(type));
  if (type == DeviceType::cpu && device != Uuid{})
    refuse(subject, "gives the CPU the UUID {}; it has none", device.str());
  if (segment == 0) refuse(subject, "names segment 0; segments are numbered from 1");
  if (segment_size > static_cast<std::uint64_t>(INT64_MAX))
    refuse(subject, "gives its segment {} bytes, more than 63 bits can count", segment_size);
}

void check_block(const Subject& subject, std::uint64_t generation, std::uint64_t storage_size,
                 std::uint64_t segment_size) {
  if (generation > kMaxHandleGeneration)
    refuse(subject, "has generation {}; generations have 62 bits", generation);
  if (storage_size > segment_size)
    refuse(subject, "has a storage of {} bytes in a segment of {} bytes", storage_size, segment_size);
}

void check_ndim(const Subject& subject, std::uint8_t ndim) {
  if (ndim > kMaxDims) refuse(subject, "has {} dimensions; the most is {}", ndim, kMaxDims);
}

Layout checked_layout(const Subject& subject, std::uint8_t dtype, std::uint8_t ndim, const std::byte* dims,
                      std::uint64_t tensor_offset, std::uint64_t storage_size) {
  check_ndim(subject, ndim);
  std::int64_t shape[kMaxDims];
  std::int64_t strides[kMaxDims];
  for (std::size_t i = 0; i < ndim; ++i) {
    Dim dim;
    copy_once(&dim, dims + i * sizeof dim, sizeof dim);
    shape[i] = dim.size;
    strides[i] = dim.stride;
  }
  Layout layout = make_layout(subject, dtype, {shape, ndim}, {strides, ndim});
  const std::uint64_t extent = layout.extent_bytes();
  std::uint64_t end = 0;
  if (__builtin_add_overflow(tensor_offset, extent, &end) || end > storage_size)
    refuse(subject, "has a tensor of {} bytes at byte {} of a storage of {} bytes", extent, tensor_offset,
           storage_size);
  return layout;
}

void store_dims(const Layout& layout, std::byte* out) noexcept {
  const auto shape = layout.shape();
  const auto strides = layout.strides();
  for (std::size_t i = 0; i < shape.size(); ++i)
    write_value(out + i * sizeof(Dim), Dim{shape[i], strides[i]});
}

}  // namespace onecopy
