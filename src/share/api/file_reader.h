// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "onecopy/core/error.h"
#include "onecopy/share/load.h"
#include "os/fd.h"
#include "os/mutex.h"

namespace onecopy {

/// Errors about files of tensors. Thread safety: all functions may be called concurrently.
/// The error of a file that is no safetensors file. If the file's beginning or name tells its format, the message
/// says the way from there. The message names the file.
Error about_format(const Error& error, const std::string& path);

/// Runs body(). Its errors name the file.
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
  /// `pieces` in ascending order of `from`. `name` is for messages.
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

}  // namespace onecopy
