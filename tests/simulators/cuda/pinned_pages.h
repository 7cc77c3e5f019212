// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>

namespace sim {

/// The pages behind a registered range as they were then: a card goes on reading them, also if others are mapped
/// there afterwards. A pipe holds them, as a driver's pins do, so bytes that the host writes to them are seen. Thread
/// safety: all members may be called concurrently.
class PinnedPages {
 public:
  /// Returns null for more than 1 MiB, which a pipe cannot hold: these pages are read in place.
  static std::shared_ptr<PinnedPages> take(void* at, std::size_t bytes);
  PinnedPages(const PinnedPages&) = delete;
  PinnedPages& operator=(const PinnedPages&) = delete;
  ~PinnedPages();

  void read(std::size_t from, std::byte* to, std::size_t bytes);

 private:
  explicit PinnedPages(std::size_t bytes) : bytes_(bytes) {}
  bool take_all(void* at);

  const std::size_t bytes_;
  std::mutex mutex_;
  int held_[2]{-1, -1};
  int passed_[2]{-1, -1};
};

}  // namespace sim
