// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "array/source.h"
#include "binding/args.h"
#include "binding/device.h"
#include "binding/module.h"
#include "onecopy/core/error.h"
#include "onecopy/share/share.h"
#include "torch/torch.h"

namespace onecopy::python {
namespace {

/// Records the stream with torch's allocator, which owns the memory. Onecopy records its own memory in torch tensors.
void record_in_torch(nb::handle tensor, nb::handle stream) {
  const Stream native = stream_arg(stream, "stream");
  if (torch::record_stream(tensor.ptr(), native)) return;
  nb::object theirs = nb::borrow(stream);
  if (PyLong_Check(stream.ptr()))
    theirs = nb::module_::import_("torch")
                 .attr(tensor.attr("device").attr("type"))
                 .attr("ExternalStream")(reinterpret_cast<std::uintptr_t>(native.native),
                                         nb::arg("device") = tensor.attr("device"));
  tensor.attr("record_stream")(theirs);
}

[[noreturn]] void refuse_cpu() {
  throw Error(ErrorCode::invalid_argument, "tensor is on the cpu, where there are no streams");
}

void record(nb::handle tensor, nb::handle stream) {
  if (as_onecopy_tensor(tensor.ptr())) {
    Tensor& ours = *nb::inst_ptr<Tensor>(tensor);
    if (is_on_host(ours)) refuse_cpu();
    ours = record_stream(ours, stream_arg(stream, "stream"));
  } else if (torch::is_tensor(tensor.ptr())) {
    if (torch::device_of(tensor) == kCpu) refuse_cpu();
    record_in_torch(tensor, stream);
  } else {
    raise_type_error(
        fmt::format("tensor must be a tensor of onecopy or torch, not {}", short_repr(tensor)));
  }
}

}  // namespace

void init_device(nb::module_& m) {
  m.def("record_stream", &record, nb::arg("tensor").none(), nb::arg("stream").none(),
        nb::sig("def record_stream(tensor: typing.Any, stream: typing.Any) -> None"),
        "Records that another stream than the one that was current at the open uses a tensor on a device.\n"
        "\n"
        "When the tensor (or its torch storage) is released, its memory is kept until this stream has\n"
        "finished the work that was queued at that time. The host does not wait.\n"
        "\n"
        "Args:\n"
        "    tensor: a tensor of onecopy or torch on a CUDA or Ascend device.\n"
        "    stream: a stream of torch or cupy, or its number. It must live until the memory is released.\n"
        "\n"
        "Raises:\n"
        "    TypeError: tensor is not a tensor, or stream is not a stream.\n"
        "    InvalidArgument: the tensor is on the cpu, which has no streams.");
  m.def(
      "_current_stream",
      [](nb::handle device) {
        return reinterpret_cast<std::uintptr_t>(current_stream(device_arg(device, "device")).native);
      },
      nb::arg("device"), "The number of the stream that share() and open() are ordered in.");
}

}  // namespace onecopy::python
