// SPDX-License-Identifier: Apache-2.0
#include "value/values.h"

#include <fmt/format.h>

#include <vector>

#include "array/numpy.h"
#include "binding/args.h"
#include "binding/bytes.h"
#include "onecopy/core/error.h"
#include "torch/torch.h"
#include "value/value_format.h"

namespace onecopy::python {

void refuse_value(const std::string& problem) {
  throw Error(ErrorCode::bad_handle,
              fmt::format("this is no message of onecopy's Python package: {}", problem));
}

nb::object open_tensor(const Tensor& tensor, std::uint32_t flags) {
  if (flags == 0) return nb::cast(tensor);
  if (flags == kNumpyFlag) return to_numpy(tensor);
  if ((flags & ~torch::kKnownFlags) != 0)
    refuse_value(fmt::format("a tensor has unknown flags {:#x}", flags));
  if (!torch::is_loaded()) import_package("torch", "a torch.Tensor of another process");
  return torch::open(tensor, flags);
}

const Tensor* as_onecopy_tensor(PyObject* object) {
  static PyTypeObject* const type = reinterpret_cast<PyTypeObject*>(nb::type<Tensor>().ptr());
  return Py_TYPE(object) == type ? nb::inst_ptr<Tensor>(object) : nullptr;
}

void init_values(nb::module_& m) {
  m.def(
      "_encode_values",
      [](nb::handle value) -> nb::object {
        Message message;
        if (!encode_value(value.ptr(), message)) return nb::none();
        nb::list tensors;
        for (const Tensor& tensor : message.tensors) tensors.append(tensor);
        return nb::make_tuple(to_python(message.data), tensors);
      },
      nb::arg("value").none(), "The value's bytes and tensors; None when it has to be pickled.");
  m.def(
      "_decode_values",
      [](nb::bytes data, nb::list tensors) {
        std::vector<Tensor> rows;
        for (const nb::handle tensor : tensors) rows.push_back(nb::cast<Tensor>(tensor));
        return decode_value(span_of(data), rows);
      },
      nb::arg("data"), nb::arg("tensors"), "The value that _encode_values() wrote.");
}

}  // namespace onecopy::python
