// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "onecopy/memory/tensor.h"
#include "value/walk.h"

namespace onecopy::python {

/// Copies the tensors of a value to a device, in the libraries of the originals.
///
/// The tensors are copied in parts of half a GiB: a card copies one part while the tensors of the next are added.
/// Tensors that are neighbours in memory are joined within a part, in whatever order they were added.
///
/// Thread safety: used with the GIL held; copying releases it.
class Copies final : public Visitor {
 public:
  static constexpr std::size_t kPart = std::size_t{512} << 20;

  /// `stream`: a stream of torch or cupy, or its number; None means the current stream. Throws as device_arg().
  Copies(nb::handle device, nb::object stream, std::size_t part);

  /// Refuses what is not a plain tensor of onecopy or torch.
  void take(std::span<Item> items, const Path& path) override;
  /// Returns the copies, in the order of addition. Throws as to_device().
  nb::list end();

  const std::vector<std::size_t>& parts() const noexcept { return parts_; }

 private:
  void copy();
  bool is_part_full() const;

  const nb::object device_;
  const nb::object stream_;
  const std::size_t part_;
  const bool is_to_host_;
  std::vector<Tensor> waiting_;
  std::vector<std::uint32_t> flags_;
  nb::list copies_;
  std::vector<std::size_t> parts_;  ///< how many tensors each had
  std::size_t bytes_ = 0, descents_ = 0;
  const void* last_ = nullptr;
};

}  // namespace onecopy::python
