// SPDX-License-Identifier: Apache-2.0
#include "binding/copies.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <span>
#include <utility>

#include "binding/args.h"
#include "binding/device.h"
#include "binding/gil.h"
#include "binding/pin.h"
#include "onecopy/share/to_device.h"
#include "torch/torch.h"

namespace onecopy::python {
namespace {

/// Appends the copies as tensors of their originals' libraries. Neighbouring torch tensors are opened together.
void append_opened(nb::list& list, const std::vector<Tensor>& made,
                   std::span<const std::optional<std::uint32_t>> flags) {
  std::vector<Tensor> of_torch;
  std::vector<std::uint32_t> their_flags;
  for (std::size_t i = 0; i < made.size(); ++i) {
    if (!flags[i]) continue;
    of_torch.push_back(made[i]);
    their_flags.push_back(*flags[i]);
  }
  const std::vector<nb::object> opened = torch::open_all(of_torch, their_flags);
  auto next = opened.begin();
  for (std::size_t i = 0; i < made.size(); ++i) list.append(flags[i] ? *next++ : nb::cast(made[i]));
}

}  // namespace

std::optional<ProgramTensor> tensor_of(nb::handle object) {
  if (nb::isinstance<Tensor>(object)) return ProgramTensor{*nb::inst_ptr<Tensor>(object), {}};
  auto shared = torch::share(object.ptr());
  if (!shared) return {};
  return ProgramTensor{std::move(shared->tensor), shared->flags};
}

Copies::Copies(nb::handle device, nb::object stream, std::size_t part)
    : device_(nb::borrow(device)),
      stream_(std::move(stream)),
      part_(part),
      is_to_host_(device_arg(device, "device") == kCpu) {}

std::size_t Copies::add(const nb::list& objects) {
  std::size_t added = 0;
  for (const nb::handle object : objects) {
    auto one = tensor_of(object);
    if (!one) break;
    append(*std::move(one));
    ++added;
  }
  return added;
}

void Copies::append(ProgramTensor one) {
  if (one.tensor.data() < last_) ++descents_;
  last_ = one.tensor.data();
  bytes_ += one.tensor.nbytes();
  waiting_.push_back(std::move(one.tensor));
  flags_.push_back(one.flags);
  if (is_part_full()) copy();
}

/// Copies to the host form one part, since each part waits for its copy.
bool Copies::is_part_full() const {
  return !is_to_host_ && bytes_ >= part_ && 4 * descents_ <= waiting_.size();
}

void Copies::copy() {
  const std::vector<Tensor> waiting = std::exchange(waiting_, {});
  const auto flags = std::exchange(flags_, {});
  bytes_ = descents_ = 0;
  if (waiting.empty()) return;
  parts_.push_back(waiting.size());
  append_opened(copies_, copies_on(waiting, device_, stream_), flags);
}

nb::list Copies::end() {
  copy();
  return std::exchange(copies_, nb::list());
}

std::vector<Tensor> copies_on(const std::vector<Tensor>& tensors, nb::handle device, nb::handle stream) {
  const Device where = device_arg(device, "device");
  const Device card = where == kCpu ? tensors.front().device() : where;
  if (card == kCpu) return without_gil([&] { return to_device(tensors, where); });
  const Stream in = stream.is_none() ? current_stream(card) : stream_arg(stream, "stream");
  watch_captures();
  return without_gil([&] {
    std::vector<Tensor> made = to_device(tensors, where, in);
    if (where == kCpu) backend(card.type).synchronize(card.index, in);  // the host reads it next
    return made;
  });
}

void init_copies(nb::module_& m) {
  nb::class_<Copies>(m, "_Copies", "The copies of a value's tensors on a device, in the value's order.")
      .def(nb::init<nb::handle, nb::object, std::size_t>(), nb::arg("device"), nb::arg("stream").none(),
           nb::arg("part") = Copies::kPart,
           "A card copies ``part`` bytes while those behind them are added.")
      .def("add", &Copies::add, nb::arg("objects"),
           "Adds objects up to the first that is not a tensor. Returns how many it added.")
      .def("end", &Copies::end, "Returns the copies, each as a tensor of its original's library.")
      .def_prop_ro("parts", &Copies::parts, "The number of tensors in each part.");
}

}  // namespace onecopy::python
