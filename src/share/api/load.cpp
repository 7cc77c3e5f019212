// SPDX-License-Identifier: Apache-2.0
#include "onecopy/share/load.h"

#include <array>
#include <utility>

#include "device/reserve_listener.h"
#include "memory/npy.h"
#include "onecopy/share/share.h"
#include "share/api/checkpoint_files.h"
#include "share/api/file_reader.h"

namespace onecopy {
namespace {

constexpr std::uint64_t kAlignment = 64;

std::uint64_t aligned(std::uint64_t offset) noexcept {
  return (offset + kAlignment - 1) / kAlignment * kAlignment;
}

/// Progress of the whole from that of its halves: reserving memory, and reading into it. The total is `total` bytes.
/// A byte counts half once it has memory, and whole once it is read.
class Halves {
 public:
  Halves(const LoadProgress& progress, std::uint64_t total) : progress_(progress), total_(total) {
    if (progress_) progress_(0, total_);
  }

  /// Shared memory for `bytes` bytes of a file.
  Tensor allocate(std::uint64_t bytes) const {
    ReserveListener::Function report;
    if (progress_)
      report = [this](std::size_t done, std::size_t total) {
        progress_(part(total_ / 2, done, total), total_);
      };
    const ReserveListener listener(std::move(report));
    return empty(Layout(DType::u8, {static_cast<std::int64_t>(bytes)}));
  }
  void read(FileReader& reader) const {
    if (!progress_) return reader.run({});
    reader.run([this](std::uint64_t done, std::uint64_t total) {
      progress_(total_ / 2 + part(total_ - total_ / 2, done, total), total_);
    });
  }

 private:
  /// `of` bytes times done / total, without a product of large numbers.
  static std::uint64_t part(std::uint64_t of, std::uint64_t done, std::uint64_t total) noexcept {
    if (done >= total) return of;
    return static_cast<std::uint64_t>(static_cast<double>(of) * static_cast<double>(done) /
                                      static_cast<double>(total));
  }

  const LoadProgress& progress_;
  std::uint64_t total_;
};

/// Where each entry goes in the block, with the end at the back.
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

std::uint64_t data_bytes(const OpenedSafetensors& file) {
  return file.header.file_size - file.header.data_offset;
}

/// `progress` is told of this file's bytes only.
void read_tensors(const OpenedSafetensors& file, const LoadProgress& progress,
                  std::vector<NamedTensor>& tensors) {
  const SafetensorsHeader& header = file.header;
  const std::vector<std::uint64_t> offsets = place(header);
  const Halves halves(progress, data_bytes(file));
  const Tensor block = halves.allocate(offsets.back());
  std::vector<FilePiece> pieces;
  pieces.reserve(header.entries.size());
  for (std::size_t i = 0; i < header.entries.size(); ++i) {
    const SafetensorsEntry& entry = header.entries[i];
    tensors.emplace_back(entry.name, block.with_layout(Layout(entry.dtype, entry.shape), offsets[i]));
    pieces.push_back(
        {header.data_offset + entry.begin, entry.end - entry.begin, block.as<std::byte>() + offsets[i]});
  }
  about_file(file.path, [&] {
    FileReader reader(file.fd, file.path, pieces);
    halves.read(reader);
  });
}

}  // namespace

std::vector<NamedTensor> load_safetensors(const std::string& path, const LoadProgress& progress) {
  const std::vector<OpenedSafetensors> files = open_checkpoint(path);
  std::uint64_t before = 0, total = 0;
  for (const OpenedSafetensors& file : files) total += data_bytes(file);
  LoadProgress of_all;
  if (progress) of_all = [&](std::uint64_t done, std::uint64_t) { progress(before + done, total); };
  std::vector<NamedTensor> tensors;
  for (const OpenedSafetensors& file : files) {
    read_tensors(file, of_all, tensors);
    before += data_bytes(file);
  }
  return tensors;
}

Tensor load_npy(const std::string& path, const LoadProgress& progress) {
  const Fd fd = open_regular(path, "an .npy file");
  return about_file(path, [&] {
    const NpyHeader header = read_npy_header(fd);
    const std::uint64_t bytes = header.layout.extent_bytes();
    const Halves halves(progress, bytes);
    const Tensor block = halves.allocate(bytes);
    const std::array pieces{FilePiece{header.data_offset, bytes, block.as<std::byte>()}};
    FileReader reader(fd, path, pieces);
    halves.read(reader);
    return block.with_layout(header.layout);
  });
}

}  // namespace onecopy
