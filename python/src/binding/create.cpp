// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "array/numbers.h"
#include "binding/args.h"
#include "binding/device.h"
#include "binding/gil.h"
#include "binding/kept.h"
#include "binding/module.h"
#include "binding/pin.h"
#include "device/reserve_listener.h"
#include "onecopy/share/share.h"

namespace onecopy::python {
namespace {

constexpr std::size_t kLarge = std::size_t{64} << 10;

Tensor new_unpinned(nb::handle shape, nb::handle dtype, nb::handle device) {
  drain_decrefs();
  const std::vector<std::int64_t> sizes = shape_arg(shape, "shape");
  const Layout layout(dtype_arg(dtype, "dtype"), sizes);
  const Device where = device_arg(device, "device");
  if (where != kCpu) return empty_in_order(layout, where);
  if (layout.nbytes() < kLarge) return empty(layout);
  return without_gil([&] {
    const ReserveListener listener([](std::size_t, std::size_t) { handle_signals(); });
    return empty(layout);
  });
}

Tensor new_tensor(nb::handle shape, nb::handle dtype, nb::handle device, bool pin) {
  Tensor made = new_unpinned(shape, dtype, device);
  if (pin) pin_here(made);
  return made;
}

/// Calls fill(first byte, bytes) for the memory piece by piece, and runs signal handlers between the pieces.
/// REQUIRES: the GIL is not held; the tensor is contiguous.
template <class Fill>
void fill_in_pieces(const Tensor& tensor, Fill&& fill) {
  constexpr std::size_t kPiece = std::size_t{16} << 20;  // of whole elements
  for (std::size_t at = 0; at < tensor.nbytes(); at += kPiece) {
    if (at != 0) handle_signals();
    fill(tensor.as<std::byte>() + at, std::min(kPiece, tensor.nbytes() - at));
  }
}

Tensor zeros(nb::handle shape, nb::handle dtype, nb::handle device, bool pin) {
  Tensor tensor = new_tensor(shape, dtype, device, pin);
  if (!is_on_host(tensor)) {
    fill_elements(tensor, Element{});
    return tensor;
  }
  return without_gil([&] {
    fill_in_pieces(tensor, [](std::byte* at, std::size_t bytes) { std::memset(at, 0, bytes); });
    return tensor;
  });
}

Tensor full(nb::handle shape, nb::handle fill_value, nb::handle dtype, nb::handle device, bool pin) {
  Tensor tensor = new_tensor(shape, dtype, device, pin);
  const Element value = from_number(tensor.dtype(), fill_value, "fill_value");
  if (!is_on_host(tensor)) {
    fill_elements(tensor, value);
    return tensor;
  }
  return without_gil([&] {
    const auto size = static_cast<std::int64_t>(size_of(tensor.dtype()));
    fill_in_pieces(tensor, [&](std::byte* at, std::size_t bytes) {
      fill(
          StridedView{
              at, {static_cast<std::int64_t>(bytes) / size}, {size}, static_cast<std::size_t>(size)},
          value);
    });
    return tensor;
  });
}

}  // namespace

void init_create(nb::module_& m) {
  m.def("empty", &new_tensor, nb::arg("shape").none(), nb::arg("dtype").none() = "float32",
        nb::arg("device").none() = "cpu", nb::arg("pin") = false,
        nb::sig("def empty(shape: int | typing.Sequence[int], dtype: typing.Any = 'float32', device: "
                "typing.Any = 'cpu', pin: bool = False) -> Tensor"),
        "Returns a new, uninitialised, row-major tensor in shared memory.\n"
        "\n"
        "Args:\n"
        "    shape: the sizes of the dimensions; one int for one dimension, () for none.\n"
        "    dtype: the element type, e.g. \"bfloat16\", or a dtype of torch or numpy. Python's bool,\n"
        "        int, float and complex mean \"bool\", \"int64\", \"float64\" and \"complex128\", as in\n"
        "        numpy.\n"
        "    device: \"cpu\", or a device by its number in this process: \"cuda:0\", \"npu:0\".\n"
        "        \"cuda\" alone is torch's current CUDA device, or \"cuda:0\" if torch has not used any.\n"
        "    pin: pins the memory for this process's cards, as ``pin()`` does.\n"
        "\n"
        "Raises:\n"
        "    InvalidArgument: a size is negative, the tensor is larger than 2^63 - 1 bytes, or the\n"
        "        device does not exist.\n"
        "    Unsupported: the device has no driver or an old one, or was used before this process was\n"
        "        forked.\n"
        "    OutOfMemory: there is not enough memory. The call reserves the memory, so that later writes\n"
        "        cannot fail.");
  m.def("zeros", &zeros, nb::arg("shape").none(), nb::arg("dtype").none() = "float32",
        nb::arg("device").none() = "cpu", nb::arg("pin") = false,
        nb::sig("def zeros(shape: int | typing.Sequence[int], dtype: typing.Any = 'float32', device: "
                "typing.Any = 'cpu', pin: bool = False) -> Tensor"),
        "Returns a new tensor of zeros. It takes the arguments of ``empty()``.");
  m.def("full", &full, nb::arg("shape").none(), nb::arg("fill_value").none(),
        nb::arg("dtype").none() = "float32", nb::arg("device").none() = "cpu", nb::arg("pin") = false,
        nb::sig("def full(shape: int | typing.Sequence[int], fill_value: bool | int | float | complex, "
                "dtype: typing.Any = 'float32', device: typing.Any = 'cpu', pin: bool = False) -> Tensor"),
        "Returns a new tensor filled with a number. It takes the other arguments of ``empty()``.\n"
        "\n"
        "Raises:\n"
        "    TypeError: fill_value is not a number of this dtype.\n"
        "    OverflowError: fill_value does not fit into the dtype.");
}

}  // namespace onecopy::python
