// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "onecopy/core/bytes.h"
#include "onecopy/core/tensor_view.h"
#include "os/fd.h"

namespace onecopy {

/// A tensor of a file: its name, layout and bytes.
struct SafetensorsEntry {
  std::string name;
  DType dtype = DType::u8;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;  ///< the offset of the first byte after SafetensorsHeader::data_offset
  std::uint64_t end = 0;
};

/// The header of a safetensors file: everything before the data.
struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  ///< in the order of their bytes, which follow without gaps
  std::map<std::string, std::string> metadata;
  std::uint64_t data_offset = 0;  ///< the offset of the data in the file
  std::uint64_t file_size = 0;
};

inline constexpr std::uint64_t kMaxSafetensorsHeader = 100'000'000;

// Thread safety: all functions may be called concurrently. Reading is strict: a file that contradicts itself throws
// bad_file with the reason, and a dtype that onecopy lacks throws unsupported.

/// Parses a header. `json` is the header without its eight bytes of length, `file_size` the size of the whole file.
SafetensorsHeader parse_safetensors_header(ByteSpan json, std::uint64_t file_size);
SafetensorsHeader read_safetensors_header(const Fd& file);

/// Returns the weight_map of a `model.safetensors.index.json`: for each tensor's name the name of its file, in the
/// index's own directory. Throws bad_file if the index contradicts itself, names a tensor twice, or names a file of
/// another directory.
std::map<std::string, std::string> read_safetensors_index(const Fd& file);

/// Writes tensors of the CPU, strided ones packed. The file appears whole or not at all. Throws invalid_argument if a
/// name occurs twice, unsupported for a tensor of a device or a dtype that the format lacks, out_of_memory if the file
/// system is full, and system.
void write_safetensors(const std::string& path, std::span<const std::pair<std::string, TensorView>> tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace onecopy
