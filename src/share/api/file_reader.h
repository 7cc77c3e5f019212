// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
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

/// Returns the error for a file that is not a safetensors file. The message names the file and, if its beginning or name
/// shows the format, how to convert it. Thread safety: may be called concurrently.
Error about_format(const Error& error, const std::string& path);

/// Runs body(), and adds the file's name to its errors.
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

/// A piece of a file, and the memory of the host or of a card that it is read into.
struct FilePiece {
  std::uint64_t from = 0;  ///< the offset in the file
  std::uint64_t bytes = 0;
  std::byte* to = nullptr;
};

/// The first error of the threads of a crew. Thread safety: all members may be called concurrently.
class FirstError {
 public:
  /// Calls the function, and keeps its exception unless there is one already.
  template <class Work>
  void keep_of(Work&& work) noexcept {
    try {
      work();
    } catch (...) {
      const LockGuard lock(mutex_);
      if (!error_) error_ = std::current_exception();
      is_set_ = true;
    }
  }
  bool is_set() const noexcept { return is_set_; }
  void rethrow() {
    const LockGuard lock(mutex_);
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::atomic<bool> is_set_{false};
  Mutex mutex_;
  std::exception_ptr error_ GUARDED_BY(mutex_);
};

/// Fills memory from a file. Pieces that follow each other in the file are read by one call, large pieces in parts. A
/// few threads read if there is enough to do: one thread cannot copy out of the page cache as fast as memory allows.
/// Thread safety: none. REQUIRES: run() is called once.
class FileReader {
 public:
  /// Constructs a reader. REQUIRES: `pieces` are sorted by `from`. `name` is for messages.
  FileReader(const Fd& fd, std::string name, std::span<const FilePiece> pieces);

  /// Reads all pieces. Throws bad_file if the file ends early, system if it cannot be read, and any exception of
  /// `progress`.
  void run(const LoadProgress& progress);

 private:
  /// A sequence of parts that follow each other in the file.
  struct Batch {
    std::uint64_t from = 0;
    std::uint64_t bytes = 0;
    std::size_t first = 0;
    std::size_t count = 0;
  };

  void add(FilePiece part);
  /// Reads one batch. Returns false if none is left or another thread has failed.
  bool step();
  void read(const Batch& batch);

  const Fd& fd_;
  std::string name_;
  std::uint64_t total_ = 0;
  std::vector<FilePiece> parts_;
  std::vector<Batch> batches_;
  std::atomic<std::size_t> next_{0};
  std::atomic<std::uint64_t> done_{0};
  FirstError error_;
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

/// The times that all threads of a load to a card have spent, added up, for the log. Thread safety: any thread may add
/// to a sum.
struct LoadTimes {
  using Nanoseconds = std::atomic<std::uint64_t>;

  Nanoseconds prepared{0};  ///< making pinned memory for the ring, by the caller alone
  Nanoseconds read{0};      ///< reading from the file into the ring
  /// The time spent waiting for a part of the ring that the card had not copied yet.
  Nanoseconds waited{0};
  std::atomic<std::uint64_t> direct{0};  ///< bytes that were read around the page cache

  std::string text() const;
};

/// Adds the time between its construction and its destruction to a sum.
class Spent {
 public:
  explicit Spent(LoadTimes::Nanoseconds& sum) noexcept : sum_(sum) {}
  Spent& operator=(Spent&&) = delete;
  ~Spent() { sum_ += static_cast<std::uint64_t>(std::chrono::nanoseconds(Clock::now() - begin_).count()); }

 private:
  using Clock = std::chrono::steady_clock;
  LoadTimes::Nanoseconds& sum_;
  const Clock::time_point begin_ = Clock::now();
};

/// Fills memory of a card from a file or from memory that is not pinned. Threads read parts of it into a ring of pinned memory, and the card copies each
/// from there. Parts that the page cache does not have are read around it (O_DIRECT) if the file system supports that.
/// Thread safety: none. REQUIRES: run() is called once, by the thread that made it.
class DeviceLoader {
 public:
  /// Constructs a loader. `name` is for messages. REQUIRES: `pieces` ascend by `from` and do not overlap.
  DeviceLoader(const Fd& fd, std::string name, std::span<const FilePiece> pieces, Device device,
               Stream stream);

  /// Constructs a loader of memory of the host that is not pinned, in place of a file.
  DeviceLoader(std::span<const std::byte> memory, std::byte* to, Device device, Stream stream);

  /// Reads all pieces, and returns once the card has made all copies. Throws bad_file if the file ends early, system if
  /// it cannot be read, and any exception of `progress`.
  void run(const LoadProgress& progress);

 private:
  struct Slot {
    std::byte* at = nullptr;
    TimelinePoint busy{};  ///< the slot is in use until the stream has passed this point
  };

  bool step(Slot& slot);
  void wait_for(Slot& slot);
  void fill(std::byte* to, std::uint64_t from, std::uint64_t bytes);
  bool is_cached(std::uint64_t from, std::uint64_t bytes) const noexcept;
  std::uint64_t read_directly(std::byte* to, std::uint64_t from, std::uint64_t bytes);
  void copy(const std::byte* slot, std::uint64_t from, std::uint64_t bytes);
  void report(const LoadProgress& progress) const;

  const Fd& fd_;
  const std::byte* const memory_ = nullptr;  ///< what is read in place of a file
  /// A mapping of the file, which is never read: mincore(2) tells by it which pages are in the page cache.
  Mapping pages_;
  Fd direct_;  ///< empty if the file system has no direct reads
  std::string name_;
  std::vector<FilePiece> pieces_;
  Device device_;
  Stream stream_;
  std::uint64_t first_ = 0;  ///< the first byte to read, a multiple of the page size
  std::uint64_t end_ = 0;
  std::atomic<std::uint64_t> next_{0};  ///< part
  std::atomic<std::uint64_t> done_{0};  ///< bytes
  LoadTimes times_;
  FirstError error_;
};

}  // namespace onecopy
