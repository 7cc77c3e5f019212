// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "binding/module.h"
#include "onecopy/memory/tensor.h"

namespace onecopy::python {

/// A tensor of the program's as ours, with the flags of torch::FlaggedTensor if it is torch's.
struct ProgramTensor {
  Tensor tensor;
  std::optional<std::uint32_t> flags;
};
/// Empty for an object that is no plain tensor of onecopy or torch. Throws as torch::share(). Called with the GIL held.
std::optional<ProgramTensor> tensor_of(nb::handle object);

/// Copies of tensors on a device, each of the library that the original came from, in the order in which they are added.
///
/// A card copies the first half GiB while the tensors behind it are added. Neighbours are joined within such a part, so
/// tensors whose order is not that of their memory stay together.
///
/// Thread safety: used with the GIL held; copying releases it.
class Copies {
 public:
  static constexpr std::size_t kPart = std::size_t{512} << 20;

  /// `stream`: a stream of torch or cupy or its number; None is the current one. Throws as device_arg().
  Copies(nb::handle device, nb::object stream, std::size_t part);

  /// Adds objects up to the first that is no plain tensor of onecopy or torch. Returns how many.
  std::size_t add(nb::list objects);
  /// The copies. Throws as to_device().
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

/// Throws as to_device(). On return copies to the host are there.
std::vector<Tensor> copies_on(const std::vector<Tensor>& tensors, nb::handle device, nb::handle stream);

}  // namespace onecopy::python
