// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <span>
#include <vector>

#include "onecopy/store/store.h"
#include "share/session.h"
#include "store/format/table.h"
#include "store/format/tied_tensors.h"

namespace onecopy::store {

/// Returns whether memory of this kind cannot shrink and outlives the process that made it.
bool outlives_its_maker(SegmentKind kind) noexcept;
/// Throws unsupported for a device whose memory ends with the process that made it.
void check_outlives_its_maker(Device device);

/// A set of tensors that are published where they lie: the segments and chunks around them are the parts of the version's memory.
/// Thread safety: none.
class AsIs {
 public:
  /// Adds tensors of one device. Throws invalid_argument, and unsupported for a tensor that would have to be copied if
  /// `copies` is false.
  AsIs(std::span<const NamedTensor> tensors, bool copies);

  /// Moves rows, size and parts into the table. Adds checksums if they are wanted.
  void describe(Table& table, bool checksums);
  /// Keeps the memory in this process as long as any process has the descriptors. Returns the descriptors: the chunks, and a pipe.
  /// Callable once.
  std::vector<Fd> keep_and_export();

 private:
  /// A source of parts: a segment of this process, or the memory of a version.
  struct Source {
    std::uint64_t begin = 0;  ///< offset in the version
    bool lasts = false;       ///< false: the memory ends with this process
    BlockRef version{};       ///< the version, which stays open until the end
  };

  void add_row(const NamedTensor& named, bool copies);
  std::optional<std::uint64_t> find(const Tensor& tensor);
  std::optional<std::uint64_t> find_own(const Tensor& tensor);
  std::optional<std::uint64_t> find_stored(const Tensor& tensor);
  void add(ExportedMemory memory);
  void add_version(std::vector<Fd> files);

  std::vector<Row> rows_;
  std::vector<Tensor> sources_;  ///< one for each row: the tensor, or its copy
  TiedTensors tied_;
  std::vector<Part> parts_;
  std::vector<Fd> files_;
  std::vector<Fd> pipes_;         ///< the pipes of versions whose memory is used
  std::vector<BlockRef> blocks_;  ///< the blocks whose memory must not be reused
  std::map<std::uint32_t, Source> segments_;
  std::map<const BlockGroup*, Source> versions_;
  std::uint64_t size_ = 0;
};

}  // namespace onecopy::store
