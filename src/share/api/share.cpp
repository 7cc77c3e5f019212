// SPDX-License-Identifier: Apache-2.0
#include "onecopy/share/share.h"

#include "onecopy/core/error.h"
#include "onecopy/memory/copy.h"
#include "onecopy/share/pin.h"
#include "share/borrower/dial.h"
#include "share/format/process_name.h"
#include "share/runtime/runtime.h"

namespace onecopy {
Tensor empty(const Layout& layout, Device device) {
  if (!layout.is_contiguous())
    throw Error(ErrorCode::invalid_argument,
                "a new tensor is row-major; allocate it so and use with_layout() for other strides: " +
                    layout.str());
  auto [block, data] = Runtime::current().allocate(layout.nbytes(), device);
  return {std::move(block), data, layout, device, Access::read_write};
}

Tensor copy(const TensorView& source) { return copy(source, source.device); }

Tensor copy(const TensorView& source, Device device) {
  Tensor tensor = empty(Layout(source.layout.dtype(), source.layout.shape()), device);
  copy_into(source, tensor.view());
  return tensor;
}

Tensor adopt(const TensorView& view, std::shared_ptr<const void> owner) {
  return Runtime::current().adopt(view, std::move(owner));
}

Handle share(const Tensor& tensor) { return Session::current().share(tensor); }

bool is_shareable(const Tensor& tensor) noexcept {
  const BlockGroup* group = tensor.block().group();
  return group && group->shareable();
}

namespace {

std::span<std::byte> storage_in(SharedBlocks& group, const Tensor& tensor) {
  const std::uint32_t number = tensor.block().number();
  const std::span<std::byte> bytes = group.bytes_of(number, tensor.access());
  return {begin_for(group, tensor, {{number, 0, 0, 0, bytes.size()}, bytes.data()}), bytes.size()};
}

}  // namespace

std::span<std::byte> storage(const Tensor& tensor) {
  if (!is_shareable(tensor))
    throw Error(ErrorCode::invalid_argument,
                "this tensor's memory belongs to another library, which alone knows how much there is; "
                "ask that library, or use onecopy::copy(tensor.view())");
  return storage_in(as_shared(*tensor.block().group()), tensor);
}

Handle hold(const Handle& handle) { return Runtime::current().hold(handle); }

void end_hold(const Handle& handle) noexcept {
  const HandleFields& fields = handle.fields();
  if (fields.hold == 0) return;
  if (Runtime* runtime = Runtime::existing()) runtime->importer().acknowledge(fields);
  else acknowledge_to(public_name(fields.maker), fields.hold);
}

namespace {

/// The stream may still have to write the copy when its last reference goes.
Tensor copy_in_order(const Tensor& tensor, const std::optional<Stream>& stream) {
  if (!stream) return copy(tensor.view());
  Tensor made = record_stream(empty(Layout(tensor.dtype(), tensor.shape()), tensor.device()), *stream);
  copy_into(tensor.view(), made.view(), *stream);
  return made;
}

void check_tensor(const Handle& handle) {
  if (handle.is_bundle())
    throw Error(ErrorCode::bad_handle, "this handle names a bundle of tensors; open it with Bundle::open");
  if (handle.fields().is_queue())
    throw Error(ErrorCode::bad_handle, "this handle names a queue; open it with Queue::connect");
}

}  // namespace

Tensor open(const Handle& handle, Access access) { return open(handle, OpenOptions{access, {}, {}}); }

Tensor open(const Handle& handle, const OpenOptions& options) {
  check_tensor(handle);
  Tensor opened = Session::open_early(handle.fields(), options);
  if (options.pinned && opened.device() == kCpu) pin(opened);
  return opened;
}

Tensor use_on(const Tensor& tensor, Device device) {
  if (device == tensor.device()) return tensor;
  if (device.type != tensor.device().type || device.type == DeviceType::cpu)
    throw Error(ErrorCode::invalid_argument,
                tensor.device().str() + " memory cannot be used on " + device.str() + "; copy it there");
  if (!is_shareable(tensor))
    throw Error(ErrorCode::invalid_argument, "this tensor's memory belongs to another library; adopt() it");
  uuid_of(device);  // is it there?
  auto& group = as_shared(*tensor.block().group());
  const auto offset = tensor.as<std::byte>() - storage_in(group, tensor).data();
  std::byte* const begin = group.allow(tensor.block().number(), tensor.access(), device.index);
  return {tensor.block(), begin + offset, tensor.layout(), device, tensor.access()};
}

Handle share(const Tensor& tensor, const ShareOptions& options) {
  Runtime& runtime = Runtime::current();
  Tensor shared = tensor;
  if (options.exact != Exact::no) {
    const std::string more = runtime.exposes(tensor);
    if (!more.empty() && options.exact == Exact::refuse) throw Error(ErrorCode::unsupported, more);
    if (!more.empty()) shared = copy_in_order(tensor, options.stream);
  }
  return options.stream ? runtime.share(shared, *options.stream) : Session::current().share(shared);
}

Tensor record_stream(const Tensor& tensor, Stream stream) {
  return Session::current().streams().order_release(tensor, stream);
}

Handle Handle::from_bytes(ByteSpan bytes) { return {decode_handle(bytes), BlockRef()}; }

std::string Handle::to_text() const { return onecopy::to_text(to_bytes()); }

Handle Handle::from_text(std::string_view text) { return from_bytes(onecopy::from_text(text)); }

}  // namespace onecopy
