// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "onecopy/device/stream.h"

namespace onecopy {

/// Bytes that one node of a graph copies, on one device.
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
  /// Work that is in the stream now comes before the point.
  virtual void record(Stream stream) = 0;
  /// Work put into the stream from now on comes after the point that was recorded last.
  virtual void let_wait(Stream stream) = 0;
  /// The host waits for it.
  virtual void wait() = 0;
};

/// A vendor's driver as users of captured graphs need it. Handles are the driver's own, and stay the caller's. All
/// members throw the driver's refusals. Thread safety: all members may be called concurrently, for one executable one
/// at a time.
class GraphDriver {
 public:
  static constexpr std::size_t kMaxRanges = 64;

  virtual ~GraphDriver() = default;
  /// Makes copy() ready on a device; it may wait for the device. REQUIRES: no stream of the thread is captured.
  virtual void prepare(int ordinal) = 0;
  /// Copies these ranges, kMaxRanges at most, in one launch. Returns its node in a captured stream, and null in
  /// others. REQUIRES: prepare().
  virtual GraphNode copy(int ordinal, Stream stream, std::span<const CopyRange> ranges) = 0;
  /// Sets the ranges of a node that copy() returned, for all launches from now on. Launches that are under way keep
  /// theirs.
  virtual void set_copy(int ordinal, GraphExecutable executable, GraphNode node,
                        std::span<const CopyRange> ranges) = 0;
  virtual void launch(int ordinal, GraphExecutable executable, Stream stream) = 0;
  virtual std::unique_ptr<StreamMark> make_mark(int ordinal) = 0;
};

}  // namespace onecopy
