// SPDX-License-Identifier: Apache-2.0
// Copies of torch tensors on cards, for other processes.
#include <algorithm>
#include <utility>

#include "binding/gil.h"
#include "binding/kept.h"
#include "onecopy/core/error.h"
#include "onecopy/share/share.h"
#include "share/session.h"
#include "torch/torch.h"

namespace onecopy::python::torch {

nb::object contiguous(PyObject* tensor) {
  const nb::object given = nb::borrow(tensor);
  if (!given.attr("layout").is(nb::module_::import_("torch").attr("strided"))) return given;
  nb::object copy = given.attr("detach")();
  for (const char* const step : {"resolve_conj", "resolve_neg", "contiguous"}) copy = copy.attr(step)();
  return copy;
}

namespace {

/// Releases copies that other processes no longer hold, without waiting for the next timer.
void take_back_copies() {
  if (Session* const session = Session::existing()) without_gil([&] { session->take_back(); });
  drain_decrefs();
}

Tensor with_room(const Layout& layout, Device home) {
  const std::size_t bytes = std::max(layout.nbytes(), Backend::kAsideRoom);
  const Tensor made = empty(Layout(DType::u8, {static_cast<std::int64_t>(bytes)}), home);
  return {made.block(), made.data(), layout, home, made.access()};
}

/// Returns whether the error means that a card is unreachable, full or missing.
bool is_no_room(ErrorCode code) {
  return code == ErrorCode::unsupported || code == ErrorCode::out_of_memory ||
         code == ErrorCode::out_of_mappings || code == ErrorCode::invalid_argument;
}

/// Copies a tensor to memory of the card `home`. Avoids the processors of the card if possible, since
/// a copy by them would wait until the card switches to this process.
Tensor written_to(Device home, const TorchTensor& from) {
  const Stream stream = current_stream(from.device);
  return without_gil([&] {
    Tensor made = record_stream(use_on(with_room(from.layout, home), from.device), stream);
    const Transfer transfer{made.data(), from.device, from.data, from.device, made.nbytes()};
    if (home == from.device) backend(home.type).copy_aside(transfer, stream);
    else copy_bytes(transfer, stream);
    return made;
  });
}

}  // namespace

std::optional<Tensor> copy_on_card(const TorchTensor& from, Device home) {
  constexpr std::size_t kLarge = std::size_t{1} << 20;
  constexpr std::size_t kScarce = std::size_t{256} << 20;
  const std::size_t bytes = from.layout.nbytes();
  if (bytes >= kScarce) take_back_copies();
  try {
    Tensor made = written_to(home, from);
    if (bytes >= kLarge && bytes < kScarce) take_back_copies();  // while the card copies
    return made;
  } catch (const Error& error) {
    if (!is_no_room(error.code())) throw;
  }
  const nb::object copy = from.object.attr("detach")().attr("clone")();
  auto shared = share(copy.ptr());
  if (!shared) return std::nullopt;
  return std::move(shared->tensor);
}

}  // namespace onecopy::python::torch
