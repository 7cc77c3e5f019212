// SPDX-License-Identifier: Apache-2.0
#include "binding/text.h"

#include <fmt/format.h>

#include "array/numbers.h"
#include "binding/device.h"
#include "onecopy/core/bytes.h"
#include "onecopy/share/share.h"

namespace onecopy::python {
namespace {

/// The maximum number of elements that repr() shows.
constexpr std::int64_t kMaxShown = 24;

const std::byte* element_at(const std::byte* data, const Tensor& tensor, std::size_t dim, std::int64_t i) {
  return data + i * tensor.strides()[dim] * static_cast<std::int64_t>(size_of(tensor.dtype()));
}

nb::object list_from(const std::byte* data, const Tensor& tensor, std::size_t dim) {
  if (dim == tensor.layout().ndim()) return to_number(tensor.dtype(), data);
  const std::int64_t count = tensor.shape()[dim];
  nb::object list = owned(PyList_New(count));
  for (std::int64_t i = 0; i < count; ++i)
    NB_LIST_SET_ITEM(list.ptr(), i,
                     list_from(element_at(data, tensor, dim, i), tensor, dim + 1).release().ptr());
  return list;
}

/// Returns the shortest text that tells the number from its neighbours of the same type.
std::string number_text(DType dtype, const std::byte* element) {
  const nb::object number = to_number(dtype, element);
  if (!PyFloat_Check(number.ptr()) || dtype == DType::f64) return nb::repr(number).c_str();
  std::string text = dtype == DType::f32 ? fmt::format("{}", load<float>(element))
                                         : fmt::format("{:.4g}", PyFloat_AsDouble(number.ptr()));
  if (text.find_first_not_of("-0123456789") == std::string::npos) text += ".0";
  return text;
}

void append(std::string& text, const std::byte* data, const Tensor& tensor, std::size_t dim) {
  if (dim == tensor.layout().ndim()) {
    text += number_text(tensor.dtype(), data);
    return;
  }
  text += '[';
  for (std::int64_t i = 0; i < tensor.shape()[dim]; ++i) {
    if (i > 0) text += ", ";
    append(text, element_at(data, tensor, dim, i), tensor, dim + 1);
  }
  text += ']';
}

}  // namespace

nb::object to_list(const Tensor& tensor) {
  const Tensor host = on_host(tensor);
  return list_from(host.as<std::byte>(), host, 0);
}

std::string to_text(const Tensor& tensor) {
  std::string text = "<onecopy.Tensor " + tensor.layout().str();
  if (tensor.device() != kCpu) text += " on " + tensor.device().str();
  if (tensor.access() == Access::read_only) text += ", read-only";
  if (!is_shareable(tensor)) text += ", memory of another library or of the store";
  const std::int64_t count = tensor.layout().numel();
  if (count > 0 && count <= kMaxShown && tensor.device() == kCpu) {
    text += ": ";
    append(text, tensor.as<std::byte>(), tensor, 0);
  }
  return text + ">";
}

}  // namespace onecopy::python
