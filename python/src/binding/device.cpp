// SPDX-License-Identifier: Apache-2.0
#include "binding/device.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "array/source.h"
#include "array/strided.h"
#include "binding/args.h"
#include "binding/gil.h"
#include "core/throw_error.h"
#include "device/pinned_ranges.h"
#include "onecopy/memory/copy.h"
#include "share/session.h"
#include "torch/torch.h"

namespace onecopy::python {
namespace {

/// The number of bytes that the host writes to fill a tensor; the device copies the rest itself.
constexpr std::size_t kStaging = std::size_t{1} << 20;

/// Returns the handle's device in this process. A query of the driver would take microseconds.
Device home_of(const HandleFields& handle) {
  if (handle.device_type == DeviceType::cpu) return kCpu;
  static std::map<std::array<std::uint8_t, 16>, Device>* const known =
      new std::map<std::array<std::uint8_t, 16>, Device>;
  const auto at = known->find(handle.device.bytes);
  if (at != known->end()) return at->second;
  return known->emplace(handle.device.bytes, find_device(handle.device_type, handle.device)).first->second;
}

[[noreturn]] void refuse_device(Device home, Device asked) {
  throw_error(ErrorCode::unsupported,
              "device: memory of {} does not open on {}; open it where it is, and copy it with .to(\"{}\")",
              home.str(), asked.str(), asked.str());
}

/// Copies after all work in the current streams of both devices, and waits for the copy.
void copy_and_wait(const TensorView& from, const TensorView& to) {
  const Device at = to.device == kCpu ? from.device : to.device;
  const Stream stream = current_stream(at);
  const Stream other = current_stream(from.device);
  without_gil([&] {
    if (from.device != at && from.device != kCpu)
      backend(from.device.type).synchronize(from.device.index, other);
    copy_into(from, to, stream);
    if (at != kCpu) backend(at.type).synchronize(at.index, stream);
  });
}

/// Fills a contiguous tensor: the host writes the first bytes, and the device then copies twice as many each time.
void fill_row(const Tensor& tensor, const Element& value) {
  const std::size_t element = size_of(tensor.dtype());
  const std::size_t first = std::min(tensor.nbytes(), kStaging);
  const auto count = static_cast<std::int64_t>(first / element);
  std::vector<std::byte> staged(first);
  fill(StridedView{staged.data(), {count}, {static_cast<std::int64_t>(element)}, element}, value);
  const Device device = tensor.device();
  const Stream stream = current_stream(device);
  without_gil([&] {
    copy_bytes({tensor.data(), device, staged.data(), kCpu, first}, stream);
    for (std::size_t done = first; done < tensor.nbytes(); done *= 2)
      copy_bytes({tensor.as<std::byte>() + done, device, tensor.data(), device,
                  std::min(done, tensor.nbytes() - done)},
                 stream);
    backend(device.type).synchronize(device.index, stream);
  });
}

/// Returns the tensor in the order of `to`: sharing it records a point in `from`, and opening it makes `to` wait.
Tensor in_stream(const Tensor& tensor, Stream from, Stream to) {
  if (from.native == to.native) return tensor;
  return without_gil([&] {
    return open(share(tensor, {.stream = from}), OpenOptions{tensor.access(), tensor.device(), to});
  });
}

/// Makes the default stream wait for a stream. If streams of the device cannot wait, the host waits and counts it.
void put_before_default_stream(Device device, Stream stream) {
  if (!stream.native) return;
  without_gil([&] {
    Session& session = Session::current();
    StreamOrder& streams = session.streams();
    streams.wait_for(session.id(), streams.mark(device, stream), device, Stream{});
  });
}

std::uintptr_t stream_number(nb::handle value, const char* argument) {
  nb::object number = nb::borrow(value);
  for (const char* attribute : {"cuda_stream", "npu_stream", "ptr", "handle"})  // torch, cupy, numba
    if (!PyLong_Check(number.ptr()) && nb::hasattr(value, attribute)) number = value.attr(attribute);
  if (!PyLong_Check(number.ptr()) || PyBool_Check(number.ptr()))
    raise_type_error(fmt::format("{} must be the number of a stream, or a stream of torch or cupy, not {}",
                                 argument, short_repr(value)));
  const std::size_t address = PyLong_AsSize_t(number.ptr());
  if (address != static_cast<std::size_t>(-1) || !PyErr_Occurred()) return address;
  PyErr_Clear();
  throw_error(ErrorCode::invalid_argument, "{} must be the number of a stream, not {}", argument,
              short_repr(value));
}

}  // namespace

Stream current_stream(Device device) { return device == kCpu ? Stream{} : torch::current_stream(device); }

/// The driver numbers the default stream 0; 1 also means the default stream.
Stream stream_arg(nb::handle value, const char* argument) {
  const std::uintptr_t number = stream_number(value, argument);
  return {number == 1 ? nullptr : reinterpret_cast<void*>(number)};
}

void require_host(const Tensor& tensor, const char* what) {
  if (is_on_host(tensor)) return;
  throw_error(ErrorCode::unsupported,
              "{} memory of the cpu, and this tensor is on {}; copy it first: .cpu()", what,
              tensor.device().str());
}

/// Releases the GIL, since an allocation that lacks memory may wait for a stream whose work needs Python.
Tensor empty_in_order(const Layout& layout, Device device) {
  Tensor made = without_gil([&] { return empty(layout, device); });
  return device == kCpu ? made : record_stream(made, current_stream(device));
}

namespace {

std::vector<DeviceStream> streams_to_come_after(std::span<const Tensor> tensors) {
  if (!std::all_of(tensors.begin(), tensors.end(), is_on_host)) return {};
  std::vector<DeviceStream> streams = current_streams();
  std::erase_if(streams, [](const DeviceStream& s) {
    return !backend(s.device.type).has_work(s.device.index, s.stream);
  });
  return streams;
}

}  // namespace

Handle share_in_order(const Tensor& tensor, Exact exact) {
  if (is_on_host(tensor) && exact == Exact::no && !PinnedRanges::any()) return share(tensor);
  const ShareOptions options{exact, current_stream(tensor.device())};
  const std::vector<DeviceStream> at_work = streams_to_come_after({&tensor, 1});
  const CurrentStreams in_order(at_work);  // a copy from a card may be filling it
  return without_gil([&] { return share(tensor, options); });
}

Tensor open_in_order(const Handle& handle, Access access, std::optional<Device> device) {
  const Device home = home_of(handle.fields());
  if (device && device->type != home.type) refuse_device(home, *device);
  if (home == kCpu) return without_gil([&] { return open(handle, access); });
  const OpenOptions options{access, device, current_stream(device.value_or(home))};
  return without_gil([&] { return open(handle, options); });
}

Stream stream_of(std::span<const Tensor> tensors) {
  std::vector<Device> devices;
  for (const Tensor& tensor : tensors)
    if (!is_on_host(tensor) && std::find(devices.begin(), devices.end(), tensor.device()) == devices.end())
      devices.push_back(tensor.device());
  if (devices.empty()) return {};
  if (devices.size() == 1) return current_stream(devices.front());
  for (const Device device : devices) put_before_default_stream(device, current_stream(device));
  return {};
}

Stream stream_to_take_in() {
  return call_python([] { return torch::captured_stream(); });
}

std::vector<DeviceStream> current_streams() {
  std::vector<DeviceStream> streams;
  Session* const session = Session::existing();
  if (!session) return streams;
  for (const Device device : session->streams().used_devices().list())
    streams.push_back({device, call_python([&] { return current_stream(device); })});
  return streams;
}

Departure::Departure(std::span<const Tensor> tensors)
    : at_work(streams_to_come_after(tensors)),
      stream(stream_of(tensors)),
      needs_a_device(!at_work.empty() || !std::all_of(tensors.begin(), tensors.end(), is_on_host)) {}

void receive(std::span<Tensor> tensors, Stream from) {
  Device device = kCpu;
  Stream current;
  for (Tensor& tensor : tensors) {
    if (is_on_host(tensor)) continue;
    if (tensor.device() != device) current = current_stream(device = tensor.device());
    tensor = in_stream(tensor, from, current);
  }
}

void finish_work_on(const Tensor& tensor) {
  const Device device = tensor.device();
  const Stream stream = current_stream(device);
  without_gil([&] { backend(device.type).synchronize(device.index, stream); });
}

Tensor handed_to(const Tensor& tensor, Stream stream) {
  const Stream ours = current_stream(tensor.device());
  if (is_shareable(tensor)) return in_stream(tensor, ours, stream);
  if (ours.native != stream.native) finish_work_on(tensor);
  return tensor;
}

Tensor copied_to(const Tensor& tensor, Device device) {
  Tensor made = empty_in_order(Layout(tensor.dtype(), tensor.shape()), device);
  copy_elements(made, tensor);
  return made;
}

Tensor on_host(const Tensor& tensor) { return is_on_host(tensor) ? tensor : copied_to(tensor, kCpu); }

void copy_elements(const Tensor& to, const Tensor& from) {
  if (is_on_host(to) && is_on_host(from)) return copy_with_gil(strided(to), strided(from));
  const bool apart = to.device() != from.device() || !overlap(strided(to), strided(from));
  copy_and_wait(apart ? from.view() : copied_to(from, from.device()).view(), to.view());
}

void fill_elements(const Tensor& tensor, const Element& value) {
  if (is_on_host(tensor)) return fill(strided(tensor), value);
  if (tensor.nbytes() == 0) return;
  if (tensor.layout().is_contiguous()) return fill_row(tensor, value);
  const Tensor host = empty(Layout(tensor.dtype(), tensor.shape()));
  fill(strided(host), value);
  copy_and_wait(host.view(), tensor.view());
}

}  // namespace onecopy::python
