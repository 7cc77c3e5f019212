// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "channel/codec/item.h"
#include "channel/codec/segment_lookup.h"
#include "channel/codec/tensor_order.h"
#include "onecopy/core/bytes.h"
#include "onecopy/memory/tensor.h"
#include "share/session.h"

namespace onecopy {

/// The row of one tensor, and the block that it names.
struct ManifestRow {
  /// Describes the tensor in the block `at`, whose segment has the index `segment`.
  ManifestRow(std::uint16_t segment, const MappedBlock& at, const Tensor& tensor)
      : row{at.info.generation, static_cast<std::uint64_t>(tensor.as<std::byte>() - at.data),
            at.info.number,     segment,
            tensor.layout(),    {}},
        block_size(at.info.size) {}

  ItemRow row;
  std::uint64_t block_size;
  Bytes handle;  ///< owns the bytes of row.handle
};

/// The names of one item's tensors as another process reads them: a row for each tensor, and the order that the
/// getter's streams must keep.
///
/// Thread safety: none of its own.
class Manifest {
 public:
  using Row = ManifestRow;

  /// Constructs a manifest for `rows` tensors, whose segments are looked up in `epoch` of the directory.
  Manifest(std::uint32_t epoch, std::size_t rows) : epoch_(epoch), has_one_(rows == 1) {
    if (!has_one_) many_.reserve(rows);
  }

  /// Adds a row, constructed from `parts`. REQUIRES: called at most `rows` times.
  template <class... Parts>
  Row& add(const Parts&... parts) {
    return has_one_ ? one_.emplace(parts...) : many_.emplace_back(parts...);
  }
  std::span<const Row> rows() const noexcept {
    return one_ ? std::span(&*one_, 1) : std::span<const Row>(many_);
  }
  /// Returns the epoch. The rows are valid only in an item that is put in this epoch.
  std::uint32_t epoch() const noexcept { return epoch_; }

  ItemOrder order;

  /// Returns the number of bytes that write() writes.
  std::size_t bytes() const noexcept;
  /// Writes rows and order in the form of an item, and returns their end.
  std::byte* write(std::byte* out) const noexcept;

 private:
  std::uint32_t epoch_;
  bool has_one_;
  std::optional<Row> one_;  ///< a single row, which takes no memory of its own
  std::vector<Row> many_;
};

/// Names tensors for the getters of one queue. Queues and the lanes of rpc use it to write their items.
///
/// Thread safety: all members may be called concurrently.
class TensorPacker {
 public:
  using Limits = SegmentLookup::Limits;

  TensorPacker(Ring& ring, SegmentDirectory& directory, const ProcessId& creator) noexcept
      : lookup_(ring, directory, creator) {}

  /// Names the tensors in the directory's present epoch. A getter's streams wait for the work that is in the
  /// departure's stream now. Returns nothing if the queue's creator would have to be asked and may not. Throws
  /// invalid_argument for memory of another library, and for tensors on two devices with a stream of one.
  std::optional<Manifest> pack(Session& session, const Departure& departure, const Limits& limits);
  /// Does what pack() does, in no stream and in an epoch that the caller has read.
  std::optional<Manifest> pack_unordered(Session& session, std::span<const Tensor> tensors,
                                         const Limits& limits, std::uint32_t epoch);
  /// Asks the creator the questions that pack() of the tensors would ask. Throws as pack() does.
  void prepare(Session& session, std::span<const Tensor> tensors, Deadline deadline);

  SegmentLookup& lookup() noexcept { return lookup_; }
  const SegmentLookup& lookup() const noexcept { return lookup_; }

 private:
  bool add(Session& session, const Tensor& tensor, const Limits& limits, Manifest& manifest);

  SegmentLookup lookup_;
};

}  // namespace onecopy
