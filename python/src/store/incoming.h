// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "array/source.h"
#include "binding/module.h"
#include "torch/torch.h"

namespace onecopy::python {

/// A tensor of any library on its way into the store. Thread safety: used with the GIL held.
class Incoming {
 public:
  /// `what` names it in errors. Throws unsupported for elements and devices that onecopy lacks.
  Incoming(nb::object object, const std::string& what);

  Layout layout() const { return plain_ ? plain_->layout : Layout(source_->dtype(), source_->shape()); }
  Device device() const { return plain_ ? plain_->device : source_->device(); }
  /// Returns the address and the layout of the elements, by which tensors in the same memory are found. The address is null
  /// for an array that no Layout describes.
  std::pair<const void*, Layout> memory() const;
  /// Returns the elements if they lie one behind the other in memory of the host, else null.
  const std::byte* host_bytes() const { return plain_ && plain_->device == kCpu ? plain_->data : nullptr; }
  /// Copies the elements. Elements on a card are copied after the work in its current stream, and the call may return
  /// before the copy is complete.
  void copy_to(const Tensor& target) const;

 private:
  nb::object object_;                        ///< keeps the memory
  std::optional<torch::TorchTensor> plain_;  ///< set for a row-major tensor of torch
  std::optional<Source> source_;             ///< set for all other tensors
};

/// Returns a tensor of any library as a tensor of onecopy, to be published in place. With `copies`, memory of other
/// libraries moves into memory of onecopy or is copied; without `copies`, the function throws unsupported. Throws the
/// errors of Incoming.
Tensor as_it_is(nb::handle object, const std::string& what, bool copies);

/// Copies each tensor of `from` into the tensor of `to` with the same index, once for tensors of `to` in the same memory.
/// Releases the GIL during large copies.
void copy_all(const std::vector<Incoming>& from, const std::vector<Tensor>& to);

}  // namespace onecopy::python
