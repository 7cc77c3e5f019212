// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <utility>

namespace onecopy {

/// Where blocks live, in coordinates that all processes have in common.
struct BlockInfo {
  std::uint32_t number = 0;      ///< index in the owner's block table
  std::uint64_t generation = 0;  ///< of the block when it was allocated
  std::uint32_t segment = 0;     ///< segment number of the owner; never reused
  std::uint64_t offset = 0;      ///< bytes from the start of the segment
  std::uint64_t size = 0;        ///< bytes
};

/// Counts the references of a group of blocks: the ledger for blocks allocated here, a peer for borrowed ones, a
/// framework for memory that is not shared at all. Thread safety: all members may be called concurrently. None
/// throws.
class BlockGroup {
 public:
  /// Returns whether other processes can open these blocks: false for memory of frameworks.
  bool shareable() const noexcept { return shareable_; }
  /// Returns another reference to a block that the caller already holds.
  virtual void retain(std::uint32_t number) noexcept = 0;
  virtual void release(std::uint32_t number) noexcept = 0;
  /// Releases one reference to each of these, which costs less than one by one.
  virtual void release_all(std::span<const std::uint32_t> numbers) noexcept {
    for (const std::uint32_t number : numbers) release(number);
  }

 protected:
  explicit BlockGroup(bool shareable) noexcept : shareable_(shareable) {}
  ~BlockGroup() = default;

 private:
  bool shareable_;
};

/// Keeps one block alive. Copyable: a copy is another reference. Thread safety: as a value; references to one block
/// may be dropped concurrently.
class BlockRef {
 public:
  BlockRef() noexcept = default;
  /// Takes over a reference that the caller already counted.
  BlockRef(BlockGroup* group, std::uint32_t number) noexcept : group_(group), number_(number) {}
  BlockRef(const BlockRef& other) noexcept : group_(other.group_), number_(other.number_) {
    if (group_) group_->retain(number_);
  }
  BlockRef(BlockRef&& other) noexcept
      : group_(std::exchange(other.group_, nullptr)), number_(other.number_) {}
  BlockRef& operator=(BlockRef other) noexcept {
    std::swap(group_, other.group_);
    std::swap(number_, other.number_);
    return *this;
  }
  ~BlockRef() { reset(); }

  void reset() noexcept {
    if (group_) std::exchange(group_, nullptr)->release(number_);
  }
  /// The reference is the caller's to count from here on.
  void detach() noexcept { group_ = nullptr; }
  explicit operator bool() const noexcept { return group_ != nullptr; }
  BlockGroup* group() const noexcept { return group_; }
  std::uint32_t number() const noexcept { return number_; }

 private:
  BlockGroup* group_ = nullptr;
  std::uint32_t number_ = 0;
};

}  // namespace onecopy
