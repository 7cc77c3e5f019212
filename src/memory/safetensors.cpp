// SPDX-License-Identifier: Apache-2.0
#include "memory/safetensors.h"

#include <fmt/format.h>

#include <algorithm>

#include "onecopy/core/error.h"
#include "os/file.h"
#include "os/memfd.h"
#include "safetensors_json.h"

namespace onecopy {

namespace {

constexpr std::uint64_t kLengthBytes = 8;

std::size_t bytes_of(const SafetensorsEntry& entry) {
  try {
    return Layout(entry.dtype, entry.shape).nbytes();
  } catch (const Error& error) {
    refuse_safetensors(fmt::format("tensor \"{}\": {}", printable(entry.name), error.what()));
  }
}

void check_size(const SafetensorsEntry& entry) {
  if (entry.end < entry.begin)
    refuse_safetensors(fmt::format("tensor \"{}\" ends at {}, before its begin at {}",
                                   printable(entry.name), entry.end, entry.begin));
  if (const std::size_t bytes = bytes_of(entry); bytes != entry.end - entry.begin)
    refuse_safetensors(fmt::format("tensor \"{}\" has {} bytes of data where its dtype and shape need {}",
                                   printable(entry.name), entry.end - entry.begin, bytes));
}

/// Checks that the data is covered exactly once. REQUIRES: sorted.
void check_ranges(const SafetensorsHeader& header) {
  const std::uint64_t data_bytes = header.file_size - header.data_offset;
  std::uint64_t at = 0;
  for (const SafetensorsEntry& entry : header.entries) check_size(entry);
  for (const SafetensorsEntry& entry : header.entries) {
    if (entry.end > data_bytes)
      refuse_safetensors(fmt::format(
          "tensor \"{}\" ends at byte {} of {} bytes of data: the file is cut off, or its header is wrong",
          printable(entry.name), entry.end, data_bytes));
    if (entry.begin != at)
      refuse_safetensors(fmt::format(
          "tensor \"{}\" begins at byte {}, {} {} where the one before it ends", printable(entry.name),
          entry.begin, entry.begin < at ? "overlapping: before" : "leaving a hole: after", at));
    at = entry.end;
  }
  if (at != data_bytes)
    refuse_safetensors(fmt::format("{} bytes of data belong to no tensor", data_bytes - at));
}

}  // namespace

SafetensorsHeader parse_safetensors_header(ByteSpan json, std::uint64_t file_size) {
  if (json.size() > kMaxSafetensorsHeader)
    refuse_safetensors(
        fmt::format("its header has {} bytes; at most {} are allowed", json.size(), kMaxSafetensorsHeader));
  if (file_size < kLengthBytes || json.size() > file_size - kLengthBytes)
    refuse_safetensors(
        fmt::format("its header of {} bytes is longer than the file of {}", json.size(), file_size));
  SafetensorsHeader header;
  header.file_size = file_size;
  header.data_offset = kLengthBytes + json.size();
  parse_safetensors_json(json, header);
  std::stable_sort(header.entries.begin(), header.entries.end(), [](const auto& a, const auto& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  check_ranges(header);
  return header;
}

SafetensorsHeader read_safetensors_header(const Fd& file) {
  const std::uint64_t size = file_size(file);
  if (size < kLengthBytes)
    refuse_safetensors(fmt::format("it has {} bytes; the length of the header alone takes 8", size));
  std::byte length[kLengthBytes];
  read_exactly(file, length, 0);
  const auto bytes = load<std::uint64_t>(length);
  if (bytes > size - kLengthBytes)
    refuse_safetensors(fmt::format("its header of {} bytes is longer than the file of {}", bytes, size));
  if (bytes > kMaxSafetensorsHeader)
    refuse_safetensors(
        fmt::format("its header has {} bytes; at most {} are allowed", bytes, kMaxSafetensorsHeader));
  Bytes json(bytes);
  read_exactly(file, json, kLengthBytes);
  return parse_safetensors_header(json, size);
}

}  // namespace onecopy
