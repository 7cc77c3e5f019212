// SPDX-License-Identifier: Apache-2.0

#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <span>
#include <utility>

#include "binding/args.h"
#include "binding/device.h"
#include "binding/gil.h"
#include "binding/module.h"
#include "binding/pin.h"
#include "onecopy/share/pin.h"
#include "onecopy/share/to_device.h"
#include "value/leaf.h"
#include "value/walk.h"

namespace onecopy::python {
namespace {

/// Returns copies of the tensors on `device`. Copies to the host are complete on return. Throws as to_device().
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

/// Appends the copies as tensors of their originals' libraries. Neighbouring torch tensors are opened together.
void append_opened(nb::list& list, const std::vector<Tensor>& made, std::span<const std::uint32_t> flags) {
  std::vector<Tensor> of_torch;
  std::vector<std::uint32_t> their_flags;
  for (std::size_t i = 0; i < made.size(); ++i) {
    if (flags[i] == 0) continue;
    of_torch.push_back(made[i]);
    their_flags.push_back(flags[i]);
  }
  const std::vector<nb::object> opened = torch::open_all(of_torch, their_flags);
  auto next = opened.begin();
  for (std::size_t i = 0; i < made.size(); ++i) list.append(flags[i] != 0 ? *next++ : nb::cast(made[i]));
}

/// Returns the tensor of an item, or refuses it.
torch::FlaggedTensor own_tensor_of(const Item& item, const Path& path, For use) {
  if (auto tensor = leaf(item.object).tensor(use)) return *std::move(tensor);
  const std::string place = path.place(item);
  if (!torch::is_any_tensor(item.object.ptr())) {
    array_of(item.object, place);
    refuse_foreign(place);
  }
  if (const nb::object plain = shareable_array(item.object, false, place); !plain.is(item.object))
    if (auto tensor = leaf(plain).tensor(use)) return *std::move(tensor);
  refuse(item.object, place);
}

/// Puts tensors in place of those that were taken, in the same order.
class Placed final : public Visitor {
 public:
  explicit Placed(nb::list made) : Visitor(Makes::same_types), made_(std::move(made)) {}
  void take(std::span<Item> items, const Path&) override {
    for (Item& item : items) item.object = made_[next_++];
  }

 private:
  const nb::list made_;
  std::size_t next_ = 0;
};

/// Views of tensors of the host on a device, without gradients.
class Views final : public Visitor {
 public:
  explicit Views(nb::handle device) : Visitor(Makes::same_types), device_(device_arg(device, "device")) {}
  void take(std::span<Item> items, const Path& path) override {
    constexpr std::uint32_t kOfGradients = torch::kRequiresGrad | torch::kParameter;
    for (Item& item : items) {
      const torch::FlaggedTensor original = own_tensor_of(item, path, For::others);
      watch_captures();
      const Tensor view = without_gil([&] { return view_on(original.tensor, device_); });
      item.object =
          original.flags != 0 ? torch::open(view, original.flags & ~kOfGradients) : nb::cast(view);
    }
  }

 private:
  const Device device_;
};

/// Copies the tensors of a value to a device, in the libraries of the originals.
///
/// The tensors are copied in parts of half a GiB: a card copies one part while the tensors of the next are added.
/// Tensors that are neighbours in memory are joined within a part, in whatever order they were added.
///
/// Thread safety: used with the GIL held; copying releases it.
class Copies final : public Visitor {
 public:
  static constexpr std::size_t kPart = std::size_t{512} << 20;

  /// `stream`: a stream of torch or cupy, or its number; None means the current stream. Throws as device_arg().
  Copies(nb::handle device, nb::object stream, std::size_t part);

  /// Refuses what is not a plain tensor of onecopy or torch.
  void take(std::span<Item> items, const Path& path) override;
  /// Returns the copies, in the order of addition. Throws as to_device().
  nb::list end();

  const std::vector<std::size_t>& parts() const noexcept { return parts_; }

 private:
  void copy();
  bool is_part_full() const;

  const nb::object device_;
  const nb::object stream_;
  const std::size_t part_;
  const bool is_to_host_;
  std::vector<Tensor> waiting_;
  std::vector<std::uint32_t> flags_;
  nb::list copies_;
  std::vector<std::size_t> parts_;  ///< how many tensors each had
  std::size_t bytes_ = 0, descents_ = 0;
  const void* last_ = nullptr;
};

Copies::Copies(nb::handle device, nb::object stream, std::size_t part)
    : Visitor(Makes::same_types),
      device_(nb::borrow(device)),
      stream_(std::move(stream)),
      part_(part),
      is_to_host_(device_arg(device, "device") == kCpu) {}

void Copies::take(std::span<Item> items, const Path& path) {
  for (const Item& item : items) {
    auto [tensor, flags] = own_tensor_of(item, path, For::this_process);
    if (tensor.data() < last_) ++descents_;
    last_ = tensor.data();
    bytes_ += tensor.nbytes();
    waiting_.push_back(std::move(tensor));
    flags_.push_back(flags);
    if (is_part_full()) copy();
  }
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

using Parts = std::vector<std::size_t>;

std::pair<nb::object, Parts> copied(nb::handle value, nb::handle device, nb::object stream,
                                    std::size_t part) {
  if (plain_of(value).is_valid()) return {nb::borrow(value), Parts()};
  Copies copies(device, std::move(stream), part);
  const nb::object shape = walk(value, copies, "value");  // new containers with the originals
  Placed placed(copies.end());
  return {walk(shape, placed, "value"), copies.parts()};
}

nb::object viewed(nb::handle value, nb::handle device) {
  if (plain_of(value).is_valid()) return nb::borrow(value);
  Views views(device);
  return walk(value, views, "value");
}

}  // namespace

void init_copies(nb::module_& m) {
  m.def("_to_device", &copied, nb::arg("value").none(), nb::arg("device"),
        nb::arg("stream").none() = nb::none(), nb::arg("part") = Copies::kPart,
        nb::sig("def _to_device(value: typing.Any, device: typing.Any, stream: typing.Any = None, part: "
                "int = 536870912) -> tuple[typing.Any, list[int]]"),
        "Returns the copy of a value, and the number of tensors in each part. A card copies ``part`` bytes "
        "while\n"
        "those behind them are added.");
  m.def("_view_on", &viewed, nb::arg("value").none(), nb::arg("device"),
        nb::sig("def _view_on(value: typing.Any, device: typing.Any) -> typing.Any"));
}

}  // namespace onecopy::python
