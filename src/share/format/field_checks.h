// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "onecopy/core/layout.h"
#include "onecopy/share/handle_fields.h"

namespace onecopy {

/// The checked object, for messages: a handle, a bundle's origin or a bundle's row. The text of a subject is made only
/// for an error.
struct Subject {
  const char* kind = "handle";
  std::int64_t number = -1;  ///< the number of the row or origin; -1 for a handle
};

/// Throws bad_handle: "This handle <problem>." or "Row 12 of this bundle <problem>."
[[noreturn]] void refuse_for(const Subject& subject, const std::string& problem);
template <class... Values>
[[noreturn]] void refuse(const Subject& subject, fmt::format_string<Values...> problem,
                         Values&&... values) {
  refuse_for(subject, fmt::format(problem, std::forward<Values>(values)...));
}

/// Checks device and segment, which handles and origins of bundles have in common.
void check_segment(const Subject& subject, std::uint8_t device_type, const Uuid& device, std::uint8_t kind,
                   std::uint32_t segment, std::uint64_t segment_size);

/// Checks the block, and that the storage fits into its segment.
void check_block(const Subject& subject, std::uint64_t generation, std::uint64_t storage_size,
                 std::uint64_t segment_size);

/// Returns the layout after checking that the tensor stays inside the storage. `dims` holds {size, stride} pairs of
/// int64 and is read once. REQUIRES: 16 * ndim bytes at `dims`.
Layout checked_layout(const Subject& subject, std::uint8_t dtype, std::uint8_t ndim, const std::byte* dims,
                      std::uint64_t tensor_offset, std::uint64_t storage_size);

/// Refuses a rank above kMaxDims, before the dimensions are read.
void check_ndim(const Subject& subject, std::uint8_t ndim);

// The following templates work on the header of a handle and on the origins and rows of a bundle, whose fields have the
// same names.

template <class Encoded>
void write_segment(const SegmentOrigin& from, Encoded& to) noexcept {
  to.owner = from.owner;
  to.maker = from.maker;
  to.device = from.device;
  to.segment = from.segment;
  to.device_type = static_cast<std::uint8_t>(from.device_type);
  to.kind = static_cast<std::uint8_t>(from.kind);
  to.segment_size = from.segment_size;
}

// The following two read into the place that a handle keeps, because copying fields right after they were written stalls
// the processor.

template <class Encoded>
void read_segment(const Subject& subject, const Encoded& from, SegmentOrigin& to) {
  check_segment(subject, from.device_type, from.device, from.kind, from.segment, from.segment_size);
  to.owner = from.owner;
  to.maker = from.maker;
  to.device_type = static_cast<DeviceType>(from.device_type);
  to.device = from.device;
  to.segment = from.segment;
  to.kind = static_cast<SegmentKind>(from.kind);
  to.segment_size = from.segment_size;
}

template <class Encoded>
void write_block(const HandleFields& from, Encoded& to) noexcept {
  to.block = from.block;
  to.generation = from.generation;
  to.storage_size = from.storage_size;
  to.tensor_offset = from.tensor_offset;
  to.flags = static_cast<decltype(to.flags)>(from.flags);
  to.dtype = static_cast<std::uint8_t>(from.layout.dtype());
  to.ndim = static_cast<std::uint8_t>(from.layout.ndim());
}

/// Reads and checks all fields but the layout. REQUIRES: `to` has its segment.
template <class Encoded>
void read_block(const Subject& subject, const Encoded& from, std::uint32_t known_flags, HandleFields& to) {
  check_block(subject, from.generation, from.storage_size, to.segment_size);
  if ((from.flags & ~known_flags) != 0)
    refuse(subject, "has unknown flags {:#x}", from.flags & ~known_flags);
  check_ndim(subject, from.ndim);
  to.block = from.block;
  to.generation = from.generation;
  to.storage_size = from.storage_size;
  to.tensor_offset = from.tensor_offset;
  to.flags = from.flags;
}

/// Writes {size, stride} pairs: 16 * ndim bytes.
void store_dims(const Layout& layout, std::byte* out) noexcept;

/// Copies bytes that another process may be changing, so that the checked bytes are the used ones. Without the
/// barrier the compiler could read the source a second time.
inline void copy_once(void* to, const std::byte* from, std::size_t bytes) noexcept {
  if (bytes != 0) std::memcpy(to, from, bytes);  // memcpy() requires pointers that are not null
  asm volatile("" : : "r"(to) : "memory");
}

}  // namespace onecopy
