// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <vector>

#include "array/numbers.h"
#include "binding/module.h"
#include "device/order/current_streams.h"
#include "onecopy/memory/tensor.h"
#include "onecopy/share/share.h"

/// Functions for memory of devices. The host accesses it only by copies, and all work is ordered by streams. Thread
/// safety: all functions are called with the GIL held, and release it while they wait.
namespace onecopy::python {

/// Returns the stream of this program's work on a device: torch's current stream if torch has used devices of this
/// type, or else the default stream. Returns no stream for the CPU.
Stream current_stream(Device device);
/// Returns the stream of a number (1: the default stream, 2: the thread's default stream), or of an object of torch,
/// cupy or numba. Raises TypeError with the argument's name, InvalidArgument for a number that is not a stream.
Stream stream_arg(nb::handle value, const char* argument);

inline bool is_on_host(const Tensor& tensor) noexcept { return tensor.device().type == DeviceType::cpu; }
/// Throws unsupported, with advice, for a tensor on a device. `what` is the beginning of the message.
void require_host(const Tensor& tensor, const char* what);

/// Allocates a tensor in the order of the device's current stream: the released memory is reused only after the work
/// that the stream has queued by then. Equals onecopy::empty() on the CPU.
Tensor empty_in_order(const Layout& layout, Device device);
/// Calls onecopy::share() in the order of the device's current stream.
Handle share_in_order(const Tensor& tensor, Exact exact = Exact::no);
/// Calls onecopy::open(), before later work in the current stream of the device. Throws unsupported for a device that
/// cannot use the memory.
Tensor open_in_order(const Handle& handle, Access access, std::optional<Device> device = {});
/// Returns the stream in whose order tensors are sent together, through a queue or in a bundle: the current stream of
/// their device. Tensors of several devices are sent in the order of the default streams, after these have waited for
/// the current streams.
Stream stream_of(std::span<const Tensor> tensors);
/// Returns the stream for a get: the current stream of torch's current device if it is being captured, or else the
/// default stream. A captured stream cannot wait for another process, so the get must fail before it takes an item.
Stream stream_to_take_in();
/// Returns the current stream of each device that this process has used. Does not call torch if it has used none.
std::vector<DeviceStream> current_streams();
/// The order in which a put or a send sends its tensors. The call makes the object first and keeps it to its end.
///
/// Thread safety: belongs to its thread.
struct Departure {
  explicit Departure(std::span<const Tensor> tensors);

  /// The streams that have work, if no tensor lies on a device: the message comes after their work. Empty if a tensor
  /// lies on a device.
  const std::vector<DeviceStream> at_work;
  const Stream stream;  ///< stream_of() the tensors, in whose order tensors on devices are sent
  const bool
      needs_a_device;  ///< whether the host may have to wait for a device, whose work may need Python
  const CurrentStreams in_order{at_work};
};
/// Makes the current streams wait for tensors that were received in the order of `from`.
void receive(std::span<Tensor> tensors, Stream from = {});
/// Waits for the work in the current stream of the tensor's device.
void finish_work_on(const Tensor& tensor);
/// Returns the tensor in the order of another stream, which waits for the work in the current stream.
Tensor handed_to(const Tensor& tensor, Stream stream);

/// Returns a row-major copy of the tensor on a device. Waits for the copy.
Tensor copied_to(const Tensor& tensor, Device device);
/// Returns the tensor itself if it is on the CPU, or a copy on the CPU.
Tensor on_host(const Tensor& tensor);
/// Copies all elements. Waits until the copy is complete. REQUIRES: equal dtype and shape.
void copy_elements(const Tensor& to, const Tensor& from);
void fill_elements(const Tensor& tensor, const Element& value);

}  // namespace onecopy::python
