// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "channel/codec/manifest.h"
#include "channel/codec/segment_lookup.h"
#include "onecopy/memory/tensor.h"
#include "share/session.h"

namespace onecopy {

/// Names tensors for the getters of one queue. Queues and the lanes of rpc write their items with it.
///
/// Thread safety: all members may be called concurrently.
class TensorPacker {
 public:
  using Limits = SegmentLookup::Limits;

  TensorPacker(Ring& ring, SegmentDirectory& directory, const ProcessId& creator) noexcept
      : lookup_(ring, directory, creator) {}

  /// Names the tensors in the directory's present epoch. A getter's streams wait for the work that `stream` has now.
  /// Empty if the queue's creator would have to be asked and may not. Throws invalid_argument for memory of another
  /// library, and for tensors on two devices with a stream of one.
  std::optional<Manifest> pack(Session& session, std::span<const Tensor> tensors, Stream stream,
                               const Limits& limits);
  /// As pack(), in no stream, and in an epoch that the caller has read.
  std::optional<Manifest> pack_unordered(Session& session, std::span<const Tensor> tensors,
                                         const Limits& limits, std::uint32_t epoch);
  /// Asks the creator the questions that pack() of these tensors would ask. Throws as pack() does.
  void prepare(Session& session, std::span<const Tensor> tensors, Deadline deadline);

  SegmentLookup& lookup() noexcept { return lookup_; }
  const SegmentLookup& lookup() const noexcept { return lookup_; }

 private:
  bool add(Session& session, const Tensor& tensor, const Limits& limits, Manifest& manifest);

  SegmentLookup lookup_;
};

}  // namespace onecopy
