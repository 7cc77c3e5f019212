// SPDX-License-Identifier: Apache-2.0
#include "share/api/file_reader.h"

#include <fmt/format.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>

#include "core/throw_error.h"
#include "os/crew.h"
#include "os/process.h"

namespace onecopy {
namespace {

constexpr const char* kFromNumpy =
    "convert it with safetensors.numpy.save_file(dict(numpy.load(FILE)), \"FILE.safetensors\"), or share "
    "one array that numpy.save() wrote";
constexpr const char* kFromTorch =
    "convert it with safetensors.torch.save_file(torch.load(FILE, weights_only=True), "
    "\"FILE.safetensors\")";

std::string start_of(const std::string& path) {
  std::string start(9, '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(start.data(), static_cast<std::streamsize>(start.size()));
  start.resize(static_cast<std::size_t>(file.gcount()));
  return start;
}

/// The first bytes of a pickle could also be the length of a safetensors header; such a header begins with a brace.
bool is_pickle(const std::string& start) {
  return start.size() > 8 && start[0] == '\x80' && start[1] >= 2 && start[1] <= 5 && start[8] != '{';
}

/// Returns a text that names the format of a file that is not a safetensors file, and how to convert it; empty if the
/// file's beginning does not show the format.
std::string other_format(const std::string& path) {
  const std::string start = start_of(path);
  if (start.starts_with("GGUF"))
    return "is a GGUF file: safetensors has no types for its quantised tensors; use the model's "
           ".safetensors files";
  if (start.starts_with("PK\x03\x04"))
    return fmt::format("is a zip archive, such as numpy.savez() and torch.save() write: {}",
                       path.ends_with(".npz") ? kFromNumpy : kFromTorch);
  if (start.starts_with("\x93NUMPY")) return "is an npy file: load_npy() reads it";
  if (is_pickle(start))
    return fmt::format("is a pickle, as old versions of torch.save() write: {}", kFromTorch);
  return {};
}

bool is_named_as_torchs(const std::string& path) {
  return path.ends_with(".pt") || path.ends_with(".pth") || path.ends_with(".bin");
}

}  // namespace

Error about_format(const Error& error, const std::string& path) {
  if (const std::string format = other_format(path); !format.empty())
    return Error(ErrorCode::bad_file, fmt::format("{} {}", path, format));
  const bool has_path = std::string_view(error.what()).find(path) != std::string_view::npos;
  const std::string message = has_path ? error.what() : fmt::format("{}: {}", path, error.what());
  if (!is_named_as_torchs(path)) return Error(ErrorCode::bad_file, message);
  return Error(ErrorCode::bad_file, fmt::format("{}; if torch.save() wrote it, {}", message, kFromTorch));
}

namespace {

constexpr std::uint64_t kBatchBytes = std::uint64_t{4} << 20;
constexpr std::size_t kBatchParts = 256;
constexpr std::uint64_t kBytesPerThread = std::uint64_t{16} << 20;
constexpr std::uint64_t kMaxThreads = 4;

std::size_t helpers_for(std::uint64_t bytes) {
  const auto cpus = static_cast<std::uint64_t>(std::max(1, usable_cpus()));
  const std::uint64_t threads = std::clamp<std::uint64_t>(bytes / kBytesPerThread, 1, kMaxThreads);
  return static_cast<std::size_t>(std::min(threads, cpus)) - 1;
}

}  // namespace

FileReader::FileReader(const Fd& fd, std::string name, std::span<const FilePiece> pieces)
    : fd_(fd), name_(std::move(name)) {
  for (FilePiece piece : pieces) {
    total_ += piece.bytes;
    while (piece.bytes > 0) {
      const FilePiece part{piece.from, std::min(piece.bytes, kBatchBytes), piece.to};
      add(part);
      piece = {piece.from + part.bytes, piece.bytes - part.bytes, piece.to + part.bytes};
    }
  }
}

void FileReader::add(FilePiece part) {
  const bool follows = !batches_.empty() && batches_.back().count < kBatchParts &&
                       batches_.back().from + batches_.back().bytes == part.from &&
                       batches_.back().bytes + part.bytes <= kBatchBytes;
  if (!follows) batches_.push_back({part.from, 0, parts_.size(), 0});
  batches_.back().bytes += part.bytes;
  ++batches_.back().count;
  parts_.push_back(part);
}

void FileReader::run(const LoadProgress& progress) {
  {
    const auto read_all = [this](const LoadProgress& each) {
      error_.keep_of([&] {
        while (step())
          if (each) each(done_.load(), total_);
      });
    };
    const Crew crew(helpers_for(total_), [&] { read_all({}); });
    read_all(progress);
  }
  error_.rethrow();
  if (progress) progress(total_, total_);
}

bool FileReader::step() {
  if (error_.is_set()) return false;
  const std::size_t index = next_.fetch_add(1);
  if (index >= batches_.size()) return false;
  read(batches_[index]);
  done_.fetch_add(batches_[index].bytes);
  return true;
}

void FileReader::read(const Batch& batch) {
  std::array<iovec, kBatchParts> parts;
  for (std::size_t i = 0; i < batch.count; ++i)
    parts[i] = {parts_[batch.first + i].to, parts_[batch.first + i].bytes};
  std::size_t first = 0;
  for (std::uint64_t done = 0; done < batch.bytes;) {
    const auto count = static_cast<int>(batch.count - first);
    const ssize_t got = ::preadv(fd_.get(), &parts[first], count, static_cast<off_t>(batch.from + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw_errno(fmt::format("cannot read {}", name_), errno);
    if (got == 0)
      throw_error(ErrorCode::bad_file,
                  "{} ended at byte {}, {} bytes too early: was it written to meanwhile?", name_,
                  batch.from + done, batch.bytes - done);
    done += static_cast<std::uint64_t>(got);
    for (auto left = static_cast<std::size_t>(got); left > 0;) {
      const std::size_t taken = std::min(left, parts[first].iov_len);
      parts[first] = {static_cast<std::byte*>(parts[first].iov_base) + taken, parts[first].iov_len - taken};
      left -= taken;
      if (parts[first].iov_len == 0) ++first;
    }
  }
}

}  // namespace onecopy
