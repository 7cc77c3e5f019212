// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <vector>

#include "array/numbers.h"
#include "binding/module.h"
#include "device/order/current_streams.h"
#include "onecopy/memory/tensor.h"
#include "onecopy/share/share.h"

/// Memory of devices: the host reaches it by copies only, and all work is in the order of streams. Thread safety: all
/// functions are called with the GIL held, and release it while they wait.
namespace onecopy::python {

/// The stream of this program's work on a device. If torch has used such devices, that is torch's current one,
/// otherwise the device's default stream. None for the CPU.
Stream current_stream(Device device);
/// A stream's number (1: the default one, 2: the thread's default one), or an object of torch, cupy or numba that
/// has it. Raises TypeError naming the argument, InvalidArgument for a number that is no stream.
Stream stream_arg(nb::handle value, const char* argument);

inline bool is_on_host(const Tensor& tensor) noexcept { return tensor.device().type == DeviceType::cpu; }
/// Throws unsupported for tensors on devices, with advice. `what` begins the sentence.
void require_host(const Tensor& tensor, const char* what);

/// A new tensor for the device's current stream: its memory is kept until that stream has passed the tensor's end
/// here. On the CPU onecopy::empty().
Tensor empty_in_order(const Layout& layout, Device device);
/// onecopy::share(), after the work in the device's current stream.
Handle share_in_order(const Tensor& tensor, Exact exact = Exact::no);
/// onecopy::open(), before later work in the current stream of the device that it is opened on. Throws unsupported
/// for a device on which the memory cannot be used.
Tensor open_in_order(const Handle& handle, Access access, std::optional<Device> device = {});
/// The stream in whose order tensors leave together, through a queue or in a bundle: the current one of their device.
/// Tensors of several devices leave in the order of the default streams, which wait for the current ones before.
Stream stream_of(std::span<const Tensor> tensors);
/// If the current stream of torch's current device is being captured, that stream, else the default streams. Pass it
/// to a get: a captured stream cannot wait for another process, so the call must fail before an item is taken.
Stream stream_to_take_in();
/// The current stream of each device that this process has used. Empty, without a question to torch, if it has used
/// none.
std::vector<DeviceStream> current_streams();
/// The order in which tensors leave this process. A put or a send makes one, at its door, and keeps it until it is done.
///
/// Thread safety: belongs to its thread.
struct Departure {
  explicit Departure(std::span<const Tensor> tensors);

  /// The streams that have work, if no tensor lies on a device: the message comes after that work. Empty otherwise.
  const std::vector<DeviceStream> at_work;
  const Stream stream;        ///< the order in which tensors on devices leave: stream_of() them
  const bool needs_a_device;  ///< then the host may have to wait for a device, which may need Python
  const CurrentStreams in_order{at_work};
};
/// Tensors that came in the order of `from`, for the current streams.
void receive(std::span<Tensor> tensors, Stream from = {});
/// Waits for the work in the device's current stream.
void finish_work_on(const Tensor& tensor);
/// The tensor for another stream, which waits for the work in the current one.
Tensor handed_to(const Tensor& tensor, Stream stream);

/// Copies the elements to a new tensor, row-major. Waits until they are there.
Tensor copied_to(const Tensor& tensor, Device device);
/// The tensor itself, or a copy of it on the CPU.
Tensor on_host(const Tensor& tensor);
/// Waits until it is done. REQUIRES: equal dtype and shape.
void copy_elements(const Tensor& to, const Tensor& from);
void fill_elements(const Tensor& tensor, const Element& value);

}  // namespace onecopy::python
