// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
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
  /// Returns the elements if they lie one behind the other in memory of the host, else null.
  const std::byte* host_bytes() const { return plain_ && plain_->device == kCpu ? plain_->data : nullptr; }
  /// Copies the elements; of a card after the work in its current stream, and perhaps without waiting for that.
  void copy_to(const Tensor& target) const;

 private:
  nb::object object_;                     ///< keeps the memory
  std::optional<torch::Copyable> plain_;  ///< of torch, row-major
  std::optional<Source> source_;          ///< everything else
};

/// Returns a tensor of any library as a tensor of onecopy, for publishing it where it lies. With `copies`, memory of other
/// libraries moves into memory of onecopy, or is copied. Throws unsupported without, and what Incoming throws.
Tensor as_it_is(nb::handle object, const std::string& what, bool copies);

/// Copies each into the tensor with its number; large ones without the GIL.
void copy_all(const std::vector<Incoming>& from, const std::vector<Tensor>& to);

}  // namespace onecopy::python
