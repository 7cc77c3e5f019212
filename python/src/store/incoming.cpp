// SPDX-License-Identifier: Apache-2.0
#include "store/incoming.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "binding/gil.h"
#include "core/throw_error.h"
#include "onecopy/store/store.h"
#include "os/crew.h"
#include "os/process.h"
#include "store/format/tied_tensors.h"
#include "value/leaf.h"

namespace onecopy::python {
namespace {

constexpr int kMaxCopiers = 8;

}  // namespace

Incoming::Incoming(nb::object object, const std::string& what) : object_(std::move(object)) {
  plain_ = leaf(object_).row_major();
  if (!plain_) source_ = array_of(object_, what);
}

std::pair<const void*, Layout> Incoming::memory() const {
  if (plain_) return {plain_->data, plain_->layout};
  if (source_->device() != kCpu) return {nullptr, layout()};
  const StridedView& elements = source_->elements();
  std::vector<std::int64_t> strides;
  for (const std::int64_t stride : elements.strides) {
    if (stride < 0 || stride % static_cast<std::int64_t>(elements.element_size) != 0)
      return {nullptr, layout()};
    strides.push_back(stride / static_cast<std::int64_t>(elements.element_size));
  }
  return {elements.data, Layout(source_->dtype(), elements.shape, strides)};
}

void Incoming::copy_to(const Tensor& target) const {
  if (target.nbytes() == 0) return;
  if (!plain_) return source_->copy_to(target);
  const Device from = plain_->device;
  const Transfer transfer{target.data(), target.device(), plain_->data, from, target.nbytes()};
  const Stream stream = from == kCpu && target.device() == kCpu
                            ? Stream{}
                            : torch::current_stream(target.device() == kCpu ? from : target.device());
  copy_bytes(transfer, stream);
  if (target.device() == kCpu && from != kCpu) backend(from.type).synchronize(from.index, stream);
}

namespace {

[[noreturn]] void refuse_copy(const std::string& what) {
  throw_error(ErrorCode::unsupported,
              "{} is not in memory of onecopy, which outlives this process; publish it with "
              "copy=True, or into a slot",
              what);
}

/// Returns a torch tensor as a tensor of onecopy. Empty for a tensor that is read like an array of another library.
std::optional<Tensor> torch_as_it_is(PyObject* object, const std::string& what, bool copies) {
  auto tensor = leaf(object).of_torch;
  if (!tensor) return std::nullopt;
  if (tensor->is_row_major()) {
    if (Tensor stored = tensor->in_version()) return stored;
    if (!copies && tensor->device == kCpu && tensor->layout.nbytes() != 0 && !torch::find_shared(object))
      refuse_copy(what);
  }
  auto shared = std::move(*tensor).share();
  if (!shared || (shared->flags & (torch::kConj | torch::kNeg)) != 0) return std::nullopt;
  return std::move(shared->tensor);
}

}  // namespace

Tensor as_it_is(nb::handle object, const std::string& what, bool copies) {
  if (auto tensor = torch_as_it_is(object.ptr(), what, copies)) return *std::move(tensor);
  const Source source = array_of(object, what);
  if (source.ours()) return *source.ours();
  if (!copies) refuse_copy(what);
  return source.copied();
}

void copy_all(const std::vector<Incoming>& from, const std::vector<Tensor>& to) {
  std::vector<std::size_t> plain;
  store::TiedTensors tied;
  for (std::size_t i = 0; i < from.size(); ++i) {
    if (tied.first(to[i].data(), to[i].layout(), i)) continue;
    if (from[i].host_bytes() && to[i].device() == kCpu) plain.push_back(i);
    else from[i].copy_to(to[i]);
  }
  without_gil([&] {
    std::atomic<std::size_t> next{0};
    const auto work = [&] {
      for (std::size_t i = next.fetch_add(1); i < plain.size(); i = next.fetch_add(1)) {
        const Tensor& target = to[plain[i]];
        if (target.nbytes() != 0) std::memcpy(target.data(), from[plain[i]].host_bytes(), target.nbytes());
      }
    };
    const std::size_t helpers =
        std::min<std::size_t>(plain.size() / 2, std::min(usable_cpus(), kMaxCopiers) - 1);
    const Crew crew(helpers, work);
    work();
  });
}

}  // namespace onecopy::python
