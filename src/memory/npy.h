// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "onecopy/core/bytes.h"
#include "onecopy/core/layout.h"
#include "os/fd.h"

namespace onecopy {

/// The header of a NumPy .npy file (versions 1 to 3): everything before the data.
struct NpyHeader {
  Layout layout;                  ///< Fortran order becomes strides
  std::uint64_t data_offset = 0;  ///< the offset in the file of the layout.extent_bytes() bytes of data
  std::uint64_t file_size = 0;
};

inline constexpr std::uint64_t kMaxNpyHeader = std::uint64_t{1} << 20;

// Thread safety: all functions may be called concurrently. All functions throw bad_file with the reason if the bytes
// contradict the format, and unsupported for elements that are not plain little-endian numbers: object arrays (pickle),
// records, strings, big-endian numbers.

/// Parses a header. `head` starts at the file's first byte and reaches at least to the data.
NpyHeader parse_npy_header(ByteSpan head, std::uint64_t file_size);
NpyHeader read_npy_header(const Fd& file);

}  // namespace onecopy
