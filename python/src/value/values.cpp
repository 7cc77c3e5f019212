// SPDX-License-Identifier: Apache-2.0
#include "value/values.h"

#include <fmt/format.h>
#include <nanobind/stl/string.h>

#include "array/numpy.h"
#include "binding/args.h"
#include "binding/bytes.h"
#include "rpc/value_codec.h"
#include "torch/torch.h"
#include "value/leaf.h"
#include "value/reader.h"

namespace onecopy::python {

nb::object open_tensor(const Tensor& tensor, std::uint32_t flags) {
  if (flags == 0) return nb::cast(tensor);
  if (flags == kNumpyFlag) return to_numpy(tensor);
  if ((flags & ~torch::kKnownFlags) != 0)
    value::refuse(fmt::format("a tensor has unknown flags {:#x}", flags));
  if (!torch::is_loaded()) import_package("torch", "a torch.Tensor of another process");
  return torch::open(tensor, flags);
}

namespace {

nb::object encode_values(nb::handle value, nb::handle reduce, nb::handle classes) {
  Message message;
  std::vector<nb::object> sent;
  EncodeOptions options;
  if (!reduce.is_none()) options = {.tensors = Tensors::are_copied, .reduce = reduce, .sent = &sent};
  if (!classes.is_none()) options.classes = classes;
  if (!encode_value(value.ptr(), message, options)) return nb::none();
  if (reduce.is_none()) return nb::make_tuple(to_python(message.data), list_of(message.tensors));
  return nb::make_tuple(to_python(message.data), list_of(message.tensors), list_of(sent));
}

std::vector<Tensor> rows_of(const nb::list& tensors) {
  std::vector<Tensor> rows;
  for (const nb::handle tensor : tensors) rows.push_back(nb::cast<Tensor>(tensor));
  return rows;
}

nb::object decode_values(const nb::bytes& data, const nb::list& tensors, nb::handle rebuild,
                         nb::handle classes) {
  const std::vector<Tensor> rows = rows_of(tensors);
  if (rebuild.is_none()) return decode_value(span_of(data), rows);
  std::vector<nb::object> received;
  DecodeOptions options{.tensors = Tensors::are_copied, .rebuild = rebuild, .received = &received};
  if (!classes.is_none()) options.classes = classes;
  const nb::object value = decode_value(span_of(data), rows, open_tensor, options);
  return nb::make_tuple(value, list_of(received));
}

/// Reads a value as a program in C++ does, and returns the bytes of the value written again.
nb::object rewrite_value(const nb::bytes& data, const nb::list& tensors) {
  Message message;
  rpc::encode_value(rpc::decode_value(span_of(data), rows_of(tensors)), message);
  return nb::make_tuple(to_python(message.data), list_of(message.tensors));
}

}  // namespace

void init_values(nb::module_& m) {
  m.def(
      "_encode_values", &encode_values, nb::arg("value").none(), nb::arg("reduce").none() = nb::none(),
      nb::arg("classes").none() = nb::none(),
      "Returns the value's bytes and tensors; None when it has to be pickled. With `reduce` as calls are\n"
      "written: returns the torch tensors of the value, too.");
  m.def("_decode_values", &decode_values, nb::arg("data"), nb::arg("tensors"),
        nb::arg("rebuild").none() = nb::none(), nb::arg("classes").none() = nb::none(),
        "Returns the value that _encode_values() wrote. With `rebuild` as calls are read: returns\n"
        "(value, its torch tensors).");
  m.def("_why_refused", &why_refused, nb::arg("tensor"),
        "Returns why no verb takes the elements of a tensor that is exactly of torch; empty for others.");
  m.def("_rewrite_value", &rewrite_value, nb::arg("data"), nb::arg("tensors"),
        "Reads a value as a program in C++ does, and returns what that writes of it: (bytes, tensors).");
}

}  // namespace onecopy::python
