// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "array/source.h"
#include "binding/module.h"
#include "torch/torch.h"

/// Says what one object is, for every verb: share(), put(), call(), publish(), pin() and to_device(). An object is a
/// tensor of onecopy, a plain tensor of torch, another array, a plain value, or nothing of these, which one text
/// refuses. docs/reference/what-goes-in.md lists what the verbs take.
/// Thread safety: all functions are called with the GIL held.
namespace onecopy::python {

/// Returns whether the object is exactly a onecopy.Tensor, a torch.Tensor or a torch.nn.Parameter. Looks at its class
/// only.
bool is_tensor(PyObject* object);

/// The user of a tensor's memory: this process, see TorchTensor::here(); other processes, which open the memory; or a
/// message, which also carries a numpy.ndarray as a tensor, with kNumpyFlag.
enum class For : std::uint8_t { this_process, others, message };

/// An object, looked at once. Valid as a TorchTensor is.
struct Leaf {
  nb::handle object;
  std::optional<torch::TorchTensor>
      of_torch;        ///< set for a plain tensor of torch, which is shared in place
  const Tensor* ours;  ///< the tensor of onecopy, or null

  /// Returns the tensor. The flags of a tensor of onecopy are 0. Empty for other objects, and for tensors of torch that
  /// flags do not describe. Throws as TorchTensor::share().
  std::optional<torch::FlaggedTensor> tensor(For use) &&;
  /// Returns a plain tensor of torch whose elements lie one behind the other as they are. Empty for other objects.
  std::optional<torch::TorchTensor> row_major() &&;
};
Leaf leaf(nb::handle object);

/// Returns the array of any library whose elements are read. Refuses other objects, and tensors of torch whose elements
/// or memory onecopy does not have.
Source array_of(nb::handle object, const std::string& place);

/// Returns the object for one array in a shared value: a plain torch tensor, or a onecopy.Tensor in shared memory; with
/// `copy` in new memory. Invalid for an object that is not an array. Refuses tensors of torch as array_of().
nb::object shareable_array(nb::handle object, bool copy, const std::string& place);

/// Returns None, or the bool, int, float, complex, str or bytes of exactly these types, that the object is or, for a
/// subclass of int, float or str and for a number of numpy, stands for. Invalid for other objects.
nb::object plain_of(nb::handle object);

/// Throws the reason why no verb takes the object: unsupported for a tensor of torch, InvalidArgument that is also a
/// TypeError for others. `place` names the object in the text.
[[noreturn]] void refuse(nb::handle object, const std::string& place);
/// Returns the reason why no verb takes a tensor that is exactly of torch, of which the text says "it"; empty for others.
std::string why_refused(nb::handle tensor);
/// Throws the reason why a verb does not take an array of another library.
[[noreturn]] void refuse_foreign(const std::string& place);

}  // namespace onecopy::python
