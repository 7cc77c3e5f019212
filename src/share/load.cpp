// SPDX-License-Identifier: Apache-2.0
#include "onecopy/share/load.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <string_view>

#include "onecopy/core/error.h"
#include "onecopy/memory/npy.h"
#include "onecopy/memory/safetensors.h"
#include "onecopy/os/file.h"
#include "onecopy/share/share.h"
#include "share/file_reader.h"

namespace onecopy {
namespace {

constexpr std::uint64_t kAlignment = 64;

std::uint64_t aligned(std::uint64_t offset) noexcept {
  return (offset + kAlignment - 1) / kAlignment * kAlignment;
}

/// A pipe that nobody writes to would be waited for, and none can be read in any order.
Fd open_regular(const std::string& path) {
  Fd fd = open_file(path, O_RDONLY | O_NONBLOCK);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) throw_errno(fmt::format("cannot examine {}", path), errno);
  if (!S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode))  // reading a directory says that it is one
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("{} is a pipe, a socket or a device; write what comes from it to a file first", path));
  return fd;
}

/// Runs `body` with the file open; its errors say which file they are about.
template <class Body>
auto with_file(const std::string& path, Body&& body) {
  const Fd fd = open_regular(path);
  try {
    return body(fd);
  } catch (const Error& error) {
    if (std::string_view(error.what()).find(path) != std::string_view::npos) throw;
    throw Error(error.code(), fmt::format("{}: {}", path, error.what()), error.vendor_code(),
                error.domain());
  }
}

/// Shared memory for `bytes` bytes of a file.
Tensor allocate(std::uint64_t bytes) {
  return empty(Layout(DType::u8, {static_cast<std::int64_t>(bytes)}));
}

/// Where each entry goes in the block, and one past the end at the back.
std::vector<std::uint64_t> place(const SafetensorsHeader& header) {
  std::vector<std::uint64_t> offsets;
  offsets.reserve(header.entries.size() + 1);
  std::uint64_t at = 0;
  for (const SafetensorsEntry& entry : header.entries) {
    offsets.push_back(at);
    at = aligned(at + (entry.end - entry.begin));
  }
  offsets.push_back(at);
  return offsets;
}

std::vector<NamedTensor> read_tensors(const Fd& fd, const std::string& path, const LoadProgress& progress) {
  const SafetensorsHeader header = read_safetensors_header(fd);
  const std::vector<std::uint64_t> offsets = place(header);
  if (progress) progress(0, header.file_size - header.data_offset);  // reserving memory takes its time
  const Tensor block = allocate(offsets.back());
  std::vector<FilePiece> pieces;
  std::vector<NamedTensor> tensors;
  pieces.reserve(header.entries.size());
  tensors.reserve(header.entries.size());
  for (std::size_t i = 0; i < header.entries.size(); ++i) {
    const SafetensorsEntry& entry = header.entries[i];
    tensors.emplace_back(entry.name, block.with_layout(Layout(entry.dtype, entry.shape), offsets[i]));
    pieces.push_back(
        {header.data_offset + entry.begin, entry.end - entry.begin, block.as<std::byte>() + offsets[i]});
  }
  FileReader(fd, path, pieces).run(progress);
  return tensors;
}

}  // namespace

std::vector<NamedTensor> load_safetensors(const std::string& path, const LoadProgress& progress) {
  return with_file(path, [&](const Fd& fd) { return read_tensors(fd, path, progress); });
}

Tensor load_npy(const std::string& path, const LoadProgress& progress) {
  return with_file(path, [&](const Fd& fd) {
    const NpyHeader header = read_npy_header(fd);
    const std::uint64_t bytes = header.layout.extent_bytes();
    if (progress) progress(0, bytes);
    const Tensor block = allocate(bytes);
    const std::array pieces{FilePiece{header.data_offset, bytes, block.as<std::byte>()}};
    FileReader(fd, path, pieces).run(progress);
    return block.with_layout(header.layout);
  });
}

}  // namespace onecopy
