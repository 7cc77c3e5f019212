// SPDX-License-Identifier: Apache-2.0
#include "exported_chunks.h"

#include <fmt/format.h>

#include <numeric>

#include "onecopy/core/error.h"

namespace onecopy::cuda {

namespace {

/// The head of the blob, which is written and read on one host only. The chunks' sizes follow the head, 8 bytes each.
struct Head {
  std::uint32_t version;
  std::uint32_t read_only;
  std::uint32_t chunks;
  std::uint32_t reserved;
  CUipcMemHandle handle;
};

constexpr std::uint32_t kVersion = 1;
[[noreturn]] void refuse(const std::string& why) {
  throw Error(ErrorCode::bad_handle, "the description of a CUDA segment " + why);
}

}  // namespace

std::uint64_t ExportedChunks::total() const noexcept {
  return std::accumulate(sizes.begin(), sizes.end(), std::uint64_t{0});
}

Bytes encode(const ExportedChunks& chunks) {
  Bytes bytes(sizeof(Head) + chunks.sizes.size() * sizeof(std::uint64_t));
  const Head head{kVersion, chunks.access == Access::read_only,
                  static_cast<std::uint32_t>(chunks.sizes.size()), 0, chunks.handle};
  write_value(bytes.data(), head);
  for (std::size_t i = 0; i < chunks.sizes.size(); ++i)
    write_value(bytes.data() + sizeof head + i * sizeof(std::uint64_t), chunks.sizes[i]);
  return bytes;
}

ExportedChunks decode_chunks(const ExportedMemory& memory) {
  if (memory.blob.size() < sizeof(Head)) refuse(fmt::format("has only {} bytes", memory.blob.size()));
  const Head head = load<Head>(memory.blob.data());
  if (head.version != kVersion) refuse(fmt::format("has version {}", head.version));
  if (head.chunks == 0 || head.chunks > kMaxChunks ||
      memory.blob.size() != sizeof head + head.chunks * sizeof(std::uint64_t))
    refuse(fmt::format("says {} chunks in {} bytes", head.chunks, memory.blob.size()));
  ExportedChunks chunks;
  chunks.access = head.read_only != 0 ? Access::read_only : Access::read_write;
  chunks.handle = head.handle;
  std::uint64_t rest = memory.size;
  for (std::uint32_t i = 0; i < head.chunks; ++i) {
    chunks.sizes.push_back(
        load<std::uint64_t>(memory.blob.data() + sizeof head + i * sizeof(std::uint64_t)));
    if (chunks.sizes.back() == 0 || chunks.sizes.back() > rest)
      refuse(fmt::format("has chunks of more than the {} bytes announced", memory.size));
    rest -= chunks.sizes.back();
  }
  if (rest != 0)
    refuse(fmt::format("has chunks of {} bytes where {} were announced", chunks.total(), memory.size));
  return chunks;
}

}  // namespace onecopy::cuda
