// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "onecopy/core/api.h"
#include "onecopy/core/bytes.h"
#include "onecopy/core/device.h"
#include "onecopy/core/layout.h"
#include "onecopy/core/process_id.h"
#include "onecopy/device/segment_kind.h"

ONECOPY_API_BEGIN
namespace onecopy {

/// The first 8 bytes of the boot id, which invalidate handles when the machine restarts.
using BootId = std::array<std::uint8_t, 8>;

/// The bits of HandleFields::flags.
ONECOPY_CONSTANT std::uint32_t kHandleIsBundle = 1;    ///< the tensor is the table of a bundle
ONECOPY_CONSTANT std::uint32_t kHandleIsReadOnly = 2;  ///< the maker lends the memory for reading only
ONECOPY_CONSTANT std::uint32_t kHandleIsQueue = 4;     ///< the memory belongs to a queue

ONECOPY_CONSTANT std::uint64_t kMaxHandleGeneration = (std::uint64_t{1} << 62) - 1;
/// The max length of a handle in bytes, with the optional parts of later versions.
ONECOPY_CONSTANT std::size_t kMaxHandleBytes = 4096;

/// The segment that a tensor lies in, and the processes that can be asked for the segment.
struct SegmentOrigin {
  ProcessId owner{};  ///< the process that allocated the block
  ProcessId
      maker{};  ///< the process that made the handle: the owner, or a borrower that shares the tensor on
  DeviceType device_type = DeviceType::cpu;
  Uuid device;
  std::uint32_t segment = 0;
  SegmentKind kind = SegmentKind::memfd;
  std::uint64_t segment_size = 0;
  bool operator==(const SegmentOrigin&) const = default;
};

/// The fields of a handle. docs/design/formats/handle-v1.md gives the bytes.
struct HandleFields : SegmentOrigin {
  BootId boot{};
  std::uint32_t block = 0;
  std::uint64_t generation = 0;
  std::uint64_t storage_size = 0;   ///< bytes of the block that belong to the tensor's storage
  std::uint64_t tensor_offset = 0;  ///< the offset of element 0 in the block, in bytes
  std::uint64_t hold = 0;           ///< nonce of the hold that keeps the block in transit; 0 means no hold
  std::uint32_t flags = 0;
  Layout layout{};
  /// Names, with timeline_value, the point to wait for before the memory is used.
  std::uint32_t timeline_slot = 0;
  std::uint64_t timeline_value = 0;  ///< slot and value 0 mean that there is nothing to wait for

  bool is_bundle() const noexcept { return (flags & kHandleIsBundle) != 0; }
  bool is_queue() const noexcept { return (flags & kHandleIsQueue) != 0; }
  bool is_read_only() const noexcept { return (flags & kHandleIsReadOnly) != 0; }
  bool operator==(const HandleFields&) const = default;
};

Bytes encode(const HandleFields& fields);

/// Decodes and checks each field of a handle against all others, so that offsets and sizes can be added without
/// overflow; only the boot id is left to the caller. Throws version_mismatch, or bad_handle with the field and the
/// numbers. Allocates only for more than 3 dimensions.
HandleFields decode_handle(ByteSpan bytes);

/// Returns "onecopy:" and base64url without padding: safe in environment variables and URLs.
std::string to_text(ByteSpan handle);
/// Returns the bytes that to_text() was given, not decoded further. Ignores white space around the text. Throws
/// bad_handle.
Bytes from_text(std::string_view text);

}  // namespace onecopy
ONECOPY_API_END
