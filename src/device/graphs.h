// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "onecopy/device/stream.h"

namespace onecopy {

/// A range of bytes that a graph's node copies on one device.
struct CopyRange {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  std::size_t bytes = 0;
};

using GraphNode = void*;        ///< the vendor's handle of a node in its graph
using GraphExecutable = void*;  ///< the vendor's handle of a graph that can be launched

/// A point in a stream. Thread safety: external.
class StreamMark {
 public:
  virtual ~StreamMark() = default;
  /// Sets the point after the work that is in the stream now.
  virtual void record(Stream stream) = 0;
  /// Makes work put into the stream from now on come after the point that was recorded last.
  virtual void let_wait(Stream stream) = 0;
  /// Waits for the point on the host.
  virtual void wait() = 0;
};

/// A vendor's driver, as users of captured graphs need it. Handles are the driver's own and belong to the caller. All
/// members throw if the driver refuses. Thread safety: all members may be called concurrently, but one at a time for
/// one executable.
class GraphDriver {
 public:
  static constexpr std::size_t kMaxRanges = 64;

  virtual ~GraphDriver() = default;
  /// Prepares copy() on a device, and may wait for the device. REQUIRES: no stream of the thread is captured.
  virtual void prepare(int ordinal) = 0;
  /// Copies these ranges, at most kMaxRanges, in one launch. Returns its node in a captured stream, null in other
  /// streams. REQUIRES: prepare() was called.
  virtual GraphNode copy(int ordinal, Stream stream, std::span<const CopyRange> ranges) = 0;
  /// Sets the ranges of a node that copy() returned, for all later launches. Launches in progress keep theirs.
  virtual void set_copy(int ordinal, GraphExecutable executable, GraphNode node,
                        std::span<const CopyRange> ranges) = 0;
  virtual void launch(int ordinal, GraphExecutable executable, Stream stream) = 0;
  virtual std::unique_ptr<StreamMark> make_mark(int ordinal) = 0;
};

}  // namespace onecopy
