// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "device/order/timeline.h"
#include "memory/safetensors.h"
#include "onecopy/core/error.h"
#include "onecopy/share/load.h"
#include "os/fd.h"
#include "os/mapping.h"
#include "os/mutex.h"

namespace onecopy {

/// Errors about files of tensors. Thread safety: all functions may be called concurrently. The error of a file that is
/// not a safetensors file. If the file's beginning or name tells its format, the message says the way from there. The
/// message names the file.
Error about_format(const Error& error, const std::string& path);

/// Runs body(). Errors of the body name the file.
template <class Body>
auto about_file(const std::string& path, Body&& body) {
  try {
    return body();
  } catch (const Error& error) {
    if (error.code() == ErrorCode::bad_file) throw about_format(error, path);
    if (std::string_view(error.what()).find(path) != std::string_view::npos) throw;
    throw Error(error.code(), path + ": " + error.what(), error.vendor_code(), error.domain());
  }
}

/// Bytes of a file and where they go.
struct FilePiece {
  std::uint64_t from = 0;
  std::uint64_t bytes = 0;
  std::byte* to = nullptr;
};

/// Fills memory from a file. Pieces that follow each other in the file are read by one call, large pieces in parts. A
/// few threads read if there is enough to do: one thread cannot copy out of the page cache as fast as memory allows.
/// Thread safety: none. REQUIRES: run() is called once.
class FileReader {
 public:
  /// Constructs a reader. REQUIRES: `pieces` ascend by `from`. `name` is for messages.
  FileReader(const Fd& fd, std::string name, std::span<const FilePiece> pieces);

  /// Throws bad_file if the file ends early, system if it cannot be read, and any exception of `progress`.
  void run(const LoadProgress& progress);

 private:
  /// Parts that follow each other in the file.
  struct Batch {
    std::uint64_t from = 0;
    std::uint64_t bytes = 0;
    std::size_t first = 0;
    std::size_t count = 0;
  };

  void add(FilePiece part);
  void help() noexcept;
  /// Reads one batch. Returns false if none is left or another thread has failed.
  bool step();
  void read(const Batch& batch);
  void fail(std::exception_ptr error) noexcept;
  /// Throws the first error of any thread.
  void rethrow();

  const Fd& fd_;
  std::string name_;
  std::uint64_t total_ = 0;
  std::vector<FilePiece> parts_;
  std::vector<Batch> batches_;
  std::atomic<std::size_t> next_{0};
  std::atomic<std::uint64_t> done_{0};
  std::atomic<bool> failed_{false};
  Mutex mutex_;
  std::exception_ptr error_ GUARDED_BY(mutex_);
};

/// An opened safetensors file, with its header.
struct OpenedSafetensors {
  std::string path;
  Fd fd;
  SafetensorsHeader header;
};

/// Opens a file to be read in any order. Throws system if it is missing, invalid_argument for a pipe, a socket, a
/// device or a directory. For a directory the message adds `instead`: the path to name in its place.
Fd open_regular(const std::string& path, const char* instead);

/// The files of a checkpoint, in the order in which they are read: the file at `path`, or the files of the directory at
/// `path`. A directory has one `.safetensors` file, or an index that names the file of each tensor. Of several indexes,
/// `model.safetensors.index.json` is taken. Only headers are read.
///
/// Throws bad_file, naming the tensor and the files, if index and files contradict each other. Throws system, as
/// open(2) does, if a file is missing, and invalid_argument if the directory does not determine the files to read.
std::vector<OpenedSafetensors> open_checkpoint(const std::string& path);

/// The time that all threads of a load to a card have read and waited, for the log. Thread safety: sums may be added to
/// concurrently.
struct LoadTimes {
  using Nanoseconds = std::atomic<std::uint64_t>;

  Nanoseconds prepared{0};               ///< the caller alone: pinned memory for the ring
  Nanoseconds read{0};                   ///< from the file into the ring
  Nanoseconds waited{0};                 ///< for a part of the ring that the card was still to copy
  std::atomic<std::uint64_t> direct{0};  ///< bytes that were read past the page cache

  std::string text() const;
};

/// Adds its own life to a sum.
class Spent {
 public:
  explicit Spent(LoadTimes::Nanoseconds& sum) noexcept : sum_(sum) {}
  Spent(const Spent&) = delete;
  Spent& operator=(const Spent&) = delete;
  ~Spent() { sum_ += static_cast<std::uint64_t>(std::chrono::nanoseconds(Clock::now() - begin_).count()); }

 private:
  using Clock = std::chrono::steady_clock;
  LoadTimes::Nanoseconds& sum_;
  const Clock::time_point begin_ = Clock::now();
};

/// Bytes of a file that go to a card.
struct DevicePiece {
  std::uint64_t from = 0;  ///< in the file
  std::uint64_t bytes = 0;
  std::byte* to = nullptr;  ///< on the card
};

/// Fills memory of a card from a file. Threads read parts of it into a ring of pinned memory, and the card copies
/// each from there. Parts outside the page cache are read past it (O_DIRECT) where the file system can. Thread
/// safety: none. REQUIRES: run() is called once, by the thread that made it.
class DeviceLoader {
 public:
  /// `pieces` in ascending order of `from`, without overlaps. `name` is for messages.
  DeviceLoader(const Fd& fd, std::string name, std::span<const DevicePiece> pieces, Device device,
               Stream stream);

  /// Returns once the stream has come past the copies. Throws bad_file if the file ends early, system if it cannot be
  /// read, and any exception of `progress`.
  void run(const LoadProgress& progress);

 private:
  struct Slot {
    std::byte* at = nullptr;
    TimelinePoint busy{};  ///< until the stream has come there
  };

  bool step(Slot& slot);
  void wait_for(Slot& slot);
  void fill(std::byte* to, std::uint64_t from, std::uint64_t bytes);
  bool is_cached(std::uint64_t from, std::uint64_t bytes) const noexcept;
  std::uint64_t read_directly(std::byte* to, std::uint64_t from, std::uint64_t bytes);
  void copy(const std::byte* slot, std::uint64_t from, std::uint64_t bytes);
  void fail(std::exception_ptr error) noexcept;
  /// Throws the first error of any thread.
  void rethrow();
  void report(const LoadProgress& progress) const;

  const Fd& fd_;
  Mapping pages_;  ///< of the file, never touched: mincore(2) reports through it which pages the cache has
  Fd direct_;      ///< none where the file system has no direct reads
  std::string name_;
  std::vector<DevicePiece> pieces_;
  Device device_;
  Stream stream_;
  std::uint64_t first_ = 0;  ///< byte of the file, a multiple of a page
  std::uint64_t end_ = 0;
  std::atomic<std::uint64_t> next_{0};  ///< part
  std::atomic<std::uint64_t> done_{0};  ///< bytes
  std::atomic<bool> failed_{false};
  LoadTimes times_;
  Mutex mutex_;
  std::exception_ptr error_ GUARDED_BY(mutex_);
};

}  // namespace onecopy
