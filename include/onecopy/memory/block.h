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
class BlockKeeper {
 public:
  /// Can other processes open these blocks? False for memory of frameworks.
  bool shareable() const noexcept { return shareable_; }
  /// Another reference to a block that the caller already holds.
  virtual void retain(std::uint32_t number) noexcept = 0;
  virtual void release(std::uint32_t number) noexcept = 0;
  /// Releases one reference to each of these, which costs less than one by one.
  virtual void release_all(std::span<const std::uint32_t> numbers) noexcept {
    for (const std::uint32_t number : numbers) release(number);
  }

 protected:
  explicit BlockKeeper(bool shareable) noexcept : shareable_(shareable) {}
  ~BlockKeeper() = default;

 private:
  bool shareable_;
};

/// Keeps one block alive. Copyable: a copy is another reference. Thread safety: as a value; references to one block
/// may be dropped concurrently.
class BlockRef {
 public:
  BlockRef() noexcept = default;
  /// Takes over a reference that the caller already counted.
  BlockRef(BlockKeeper* keeper, std::uint32_t number) noexcept : keeper_(keeper), number_(number) {}
  BlockRef(const BlockRef& other) noexcept : keeper_(other.keeper_), number_(other.number_) {
    if (keeper_) keeper_->retain(number_);
  }
  BlockRef(BlockRef&& other) noexcept
      : keeper_(std::exchange(other.keeper_, nullptr)), number_(other.number_) {}
  BlockRef& operator=(BlockRef other) noexcept {
    std::swap(keeper_, other.keeper_);
    std::swap(number_, other.number_);
    return *this;
  }
  ~BlockRef() { reset(); }

  void reset() noexcept {
    if (keeper_) std::exchange(keeper_, nullptr)->release(number_);
  }
  /// The reference is the caller's to count from here on.
  void detach() noexcept { keeper_ = nullptr; }
  explicit operator bool() const noexcept { return keeper_ != nullptr; }
  BlockKeeper* keeper() const noexcept { return keeper_; }
  std::uint32_t number() const noexcept { return number_; }

 private:
  BlockKeeper* keeper_ = nullptr;
  std::uint32_t number_ = 0;
};

}  // namespace onecopy
