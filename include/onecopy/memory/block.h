// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "onecopy/core/api.h"

ONECOPY_API_BEGIN
namespace onecopy {

/// The place of a block, in coordinates that all processes share.
struct BlockInfo {
  std::uint32_t number = 0;      ///< the index in the owner's block table
  std::uint64_t generation = 0;  ///< the block's generation when it was allocated
  std::uint32_t segment = 0;     ///< the segment's number at the owner; never reused
  std::uint64_t offset = 0;      ///< the offset in the segment, in bytes
  std::uint64_t size = 0;        ///< bytes
};

class BlockRef;
class Tensor;

/// An interface that counts references to a group of blocks. Implemented by the ledger for blocks allocated here, by a
/// peer for borrowed blocks, by the store for versions, and by a framework for memory that is not shared. Thread safety:
/// all members may be called concurrently. Only lend() throws.
class BlockGroup {
 public:
  /// Returns whether other processes can open these blocks: false for memory of frameworks and of the store.
  bool shareable() const noexcept { return shareable_; }
  /// Returns a tensor of the same memory that other processes can open, in place of a tensor in these blocks. Returns an
  /// empty tensor if there is none.
  virtual Tensor lend(const Tensor& tensor);
  /// Returns whether a tensor that is not lent is sent as a copy, and not refused.
  virtual bool is_sent_as_copy() const noexcept { return false; }
  /// Adds a reference to a block that the caller already holds.
  virtual void add_reference(std::uint32_t number) noexcept = 0;
  virtual void release(std::uint32_t number) noexcept = 0;
  /// Releases one reference to each block, at less cost than one call for each.
  virtual void release_all(std::span<const std::uint32_t> numbers) noexcept {
    for (const std::uint32_t number : numbers) release(number);
  }

 protected:
  explicit BlockGroup(bool shareable) noexcept : shareable_(shareable) {}
  ~BlockGroup() = default;

 private:
  bool shareable_;
};

/// A reference that keeps one block alive. A copy is another reference. Thread safety: as a value; references to one
/// block may be dropped concurrently.
class BlockRef {
 public:
  BlockRef() noexcept = default;
  /// Takes over a reference that the caller has already counted.
  BlockRef(BlockGroup* group, std::uint32_t number) noexcept : group_(group), number_(number) {}
  BlockRef(const BlockRef& other) noexcept : group_(other.group_), number_(other.number_) {
    if (group_) group_->add_reference(number_);
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
  /// Gives the reference to the caller, who must release it.
  void detach() noexcept { group_ = nullptr; }
  explicit operator bool() const noexcept { return group_ != nullptr; }
  BlockGroup* group() const noexcept { return group_; }
  std::uint32_t number() const noexcept { return number_; }

 private:
  BlockGroup* group_ = nullptr;
  std::uint32_t number_ = 0;
};

}  // namespace onecopy
ONECOPY_API_END
