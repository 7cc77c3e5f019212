// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

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

/// One node of a captured graph, as bytes.
struct RecordedNode {
  enum class Kind : std::uint8_t {
    kernel,
    copy,
    fill,
    empty,
    other,  ///< nothing is known of its parameters
  };
  /// Where one parameter of a kernel lies in `bytes`.
  struct Parameter {
    std::size_t offset = 0;
    std::size_t bytes = 0;
    bool operator==(const Parameter&) const = default;
  };

  Kind kind = Kind::other;
  GraphNode node = nullptr;
  std::string name;                      ///< of a kernel: its function; of others: why they are `other`
  std::array<std::uint32_t, 7> shape{};  ///< of a kernel: its grid, its blocks, its shared memory
  std::vector<Parameter> parameters;     ///< none: the kernel got its parameters as one buffer
  std::vector<std::byte> bytes;          ///< all parameters
};

/// An order between two nodes, by places in Recording::nodes.
struct RecordedEdge {
  std::uint32_t from = 0;
  std::uint32_t to = 0;
  std::uint64_t kind = 0;  ///< the vendor's word for it; 0: all of one before all of the other
  auto operator<=>(const RecordedEdge&) const = default;  // NOLINT(modernize-use-nullptr)
};

/// A captured graph, as bytes. Nodes are in the order in which they were captured.
struct Recording {
  std::vector<RecordedNode> nodes;
  std::vector<RecordedEdge> edges;  ///< in ascending order
};

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
  static constexpr std::size_t kMostRanges = 64;

  virtual ~GraphDriver() = default;
  /// Makes copy() ready on a device; it may wait for the device. REQUIRES: no stream of the thread is captured.
  virtual void prepare(int ordinal) = 0;
  /// Copies these ranges, kMostRanges at most, in one launch. Returns its node in a captured stream, and null in
  /// others. REQUIRES: prepare().
  virtual GraphNode copy(int ordinal, Stream stream, std::span<const CopyRange> ranges) = 0;
  /// Sets the ranges of a node that copy() returned, for all launches from now on. Launches that are under way keep
  /// theirs.
  virtual void set_copy(int ordinal, GraphExecutable executable, GraphNode node,
                        std::span<const CopyRange> ranges) = 0;
  virtual void launch(int ordinal, GraphExecutable executable, Stream stream) = 0;
  /// Throws unsupported if the driver does not tell the parameters of nodes.
  virtual void require_read() = 0;
  /// Throws as require_read().
  virtual Recording read(int ordinal, void* graph) = 0;
  /// Sets the parameters of a node in all launches from now on: `node` is of read(), with other bytes.
  virtual void set(int ordinal, GraphExecutable executable, const RecordedNode& node) = 0;
  virtual std::unique_ptr<StreamMark> make_mark(int ordinal) = 0;
};

}  // namespace onecopy
