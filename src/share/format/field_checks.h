// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "onecopy/core/layout.h"
#include "onecopy/share/handle_fields.h"

namespace onecopy {

/// The checked object, for messages: a handle, a bundle's origin or a bundle's row. Its text is made only for an
/// error.
struct Subject {
  const char* kind = "handle";
  std::int64_t number = -1;  ///< of the row or origin; -1 = none
};

/// Throws bad_handle: "This handle <problem>." or "Row 12 of this bundle <problem>."
[[noreturn]] void refuse(const Subject& subject, const std::string& problem);

/// Checks device and segment, which handles and origins of bundles have in common.
void check_segment(const Subject& subject, std::uint8_t device_type, const Uuid& device, std::uint8_t kind,
                   std::uint32_t segment, std::uint64_t segment_size);

/// The block, and that the storage fits into its segment.
void check_block(const Subject& subject, std::uint64_t generation, std::uint64_t storage_size,
                 std::uint64_t segment_size);

/// The tensor, and that it stays inside the storage. `dims` holds {size, stride} pairs of int64 and is
/// read once. REQUIRES: 16 * ndim bytes at `dims`.
Layout checked_layout(const Subject& subject, std::uint8_t dtype, std::uint8_t ndim, const std::byte* dims,
                      std::uint64_t tensor_offset, std::uint64_t storage_size);

/// A rank above kMaxDims is refused without a look at the dimensions.
void check_ndim(const Subject& subject, std::uint8_t ndim);

/// Writes {size, stride} pairs: 16 * ndim bytes.
void store_dims(const Layout& layout, std::byte* out) noexcept;

/// Copies bytes that another process may be changing, so that the checked bytes are the used ones. Without the
/// barrier the compiler could read the source a second time.
inline void copy_once(void* to, const std::byte* from, std::size_t bytes) noexcept {
  if (bytes != 0) std::memcpy(to, from, bytes);  // without bytes either end may be null
  asm volatile("" : : "r"(to) : "memory");
}

}  // namespace onecopy
