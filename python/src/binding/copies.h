// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "binding/module.h"
#include "onecopy/memory/tensor.h"

namespace onecopy::python {

/// A tensor of the program as a Tensor, with the flags of torch::FlaggedTensor if it is a torch tensor.
struct ProgramTensor {
  Tensor tensor;
  std::optional<std::uint32_t> flags;
};
/// Returns the tensor of an object. Empty if it is not a plain tensor of onecopy or torch. Throws as torch::share().
/// REQUIRES: the GIL.
std::optional<ProgramTensor> tensor_of(nb::handle object);

/// Copies tensors to a device, and returns the copies in the order of addition, in the libraries of the originals.
///
/// The tensors are copied in parts of half a GiB: a card copies one part while the tensors of the next are added.
/// Tensors that are neighbours in memory are joined within a part, in whatever order they were added.
///
/// Thread safety: used with the GIL held; copying releases it.
class Copies {
 public:
  static constexpr std::size_t kPart = std::size_t{512} << 20;

  /// `stream`: a stream of torch or cupy, or its number; None means the current stream. Throws as device_arg().
  Copies(nb::handle device, nb::object stream, std::size_t part);

  /// Adds objects up to the first that is not a plain tensor of onecopy or torch. Returns how many it added.
  std::size_t add(const nb::list& objects);
  /// Returns the copies. Throws as to_device().
  nb::list end();

  const std::vector<std::size_t>& parts() const noexcept { return parts_; }

 private:
  void append(ProgramTensor one);
  void copy();
  bool is_part_full() const;

  const nb::object device_;
  const nb::object stream_;
  const std::size_t part_;
  const bool is_to_host_;
  std::vector<Tensor> waiting_;
  std::vector<std::optional<std::uint32_t>> flags_;
  nb::list copies_;
  std::vector<std::size_t> parts_;  ///< how many tensors each had
  std::size_t bytes_ = 0, descents_ = 0;
  const void* last_ = nullptr;
};

/// Returns copies of the tensors on `device`. Copies to the host are complete on return. Throws as to_device().
std::vector<Tensor> copies_on(const std::vector<Tensor>& tensors, nb::handle device, nb::handle stream);

}  // namespace onecopy::python
