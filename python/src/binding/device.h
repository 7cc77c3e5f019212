// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <vector>

#include "array/numbers.h"
#include "binding/module.h"
#include "device/order/current_streams.h"
#include "onecopy/memory/tensor.h"
#include "onecopy/share/share.h"

/// Memory of devices: the host reaches it by copies only, and everything is in the order of streams.
/// Thread safety: all functions are called with the GIL held, and let go of it while they wait.
namespace onecopy::python {

/// The stream that this program's work on a device goes to: torch's current one where torch has used such
/// devices, and the device's default stream otherwise. None for the CPU.
Stream current_stream(Device device);
/// A stream's number (1: the default one, 2: the thread's default one), or an object of torch, cupy or numba that
/// has it. Raises TypeError naming the argument, InvalidArgument for a number that is no stream.
Stream stream_arg(nb::handle value, const char* argument);

inline bool is_on_host(const Tensor& tensor) noexcept { return tensor.device().type == DeviceType::cpu; }
/// Throws unsupported for tensors on devices, saying what to do. `what` begins the sentence.
void require_host(const Tensor& tensor, const char* what);

/// A new tensor for the device's current stream: its memory is kept until that stream has come past the tensor's end
/// here. On the CPU onecopy::empty().
Tensor empty_in_order(const Layout& layout, Device device);
/// onecopy::share(), after what is in the device's current stream.
Handle share_in_order(const Tensor& tensor, Exact exact = Exact::no);
/// onecopy::open(), before what comes into the current stream of the device that it is opened on. Throws
/// unsupported for a device that the memory cannot be used on.
Tensor open_in_order(const Handle& handle, Access access, std::optional<Device> device = {});
/// The stream in whose order tensors leave together, through a queue or in a bundle: the current one of their
/// device. From several devices they leave in the order of the default streams, which wait for the current ones before.
Stream stream_of(std::span<const Tensor> tensors);
/// The current stream of torch's current device if that is being captured, and the default streams otherwise. Who
/// takes an item away names it, so as to be refused before: a captured stream cannot wait for another process.
Stream stream_to_take_in();
/// The current stream of each device that this process has used; none, and no question, where it has used none.
std::vector<DeviceStream> current_streams();
/// Those of them that have work, for a message without tensors on devices, which comes after it; none for another one.
std::vector<DeviceStream> streams_to_come_after(std::span<const Tensor> tensors);
/// Tensors that came in the order of `from`, for the current streams.
void receive(std::span<Tensor> tensors, Stream from = {});
/// Waits for what the device's current stream has in it.
void finish_work_on(const Tensor& tensor);
/// The same tensor for another stream, which waits for what the current one has in it.
Tensor handed_to(const Tensor& tensor, Stream stream);

/// The elements in a new tensor, row-major. Waits until they are there.
Tensor copied_to(const Tensor& tensor, Device device);
/// The tensor itself, or a copy of it on the CPU.
Tensor on_host(const Tensor& tensor);
/// Waits until it is done. REQUIRES: the same dtype and shape.
void copy_elements(const Tensor& to, const Tensor& from);
void fill_elements(const Tensor& tensor, const Element& value);

}  // namespace onecopy::python
