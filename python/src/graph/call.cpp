// SPDX-License-Identifier: Apache-2.0
#include "graph/call.h"

#include <algorithm>

#include "binding/gil.h"
#include "device/backend.h"
#include "onecopy/core/error.h"

namespace onecopy::python {

namespace {

const torch::TorchSymbols& torch_api() {
  const torch::TorchSymbols* api = torch::TorchSymbols::get();
  if (!api || !api->exchange_table())
    throw Error(ErrorCode::unsupported, "this torch has no exchange table; calls in C++ need torch 2.10");
  return *api;
}

const torch::AotiShim& torch_shim() {
  const torch::AotiShim* shim = torch::AotiShim::get();
  if (!shim)
    throw Error(ErrorCode::unsupported, "this torch lacks a part of its C interface (aoti_torch_*)");
  return *shim;
}

GraphDriver& driver_of(Device device) {
  GraphDriver* driver = backend(device.type).graphs();
  if (!driver) throw Error(ErrorCode::unsupported, "graphs of this device cannot be changed");
  return *driver;
}

}  // namespace

TensorSignature::TensorSignature(const View& tensor)
    : data(tensor.data),
      dtype(tensor.dtype),
      device_type(tensor.device_type),
      device_index(tensor.device_index),
      numbers(tensor.sizes, tensor.sizes + tensor.dim) {
  numbers.insert(numbers.end(), tensor.strides, tensor.strides + tensor.dim);
}

bool TensorSignature::matches_layout(const View& tensor) const noexcept {
  const auto dim = static_cast<std::size_t>(tensor.dim);
  return 2 * dim == numbers.size() && tensor.dtype == dtype && tensor.device_type == device_type &&
         tensor.device_index == device_index &&
         std::equal(tensor.sizes, tensor.sizes + dim, numbers.begin()) &&
         std::equal(tensor.strides, tensor.strides + dim, numbers.begin() + tensor.dim);
}

GraphCall::GraphCall(nb::object lock, Device device, GraphExecutable executable,
                     std::vector<GraphNode> gather, std::vector<GraphNode> scatter)
    : api_(torch_api()),
      shim_(torch_shim()),
      lock_object_(std::move(lock)),
      lock_(*nb::inst_ptr<ArenaLock>(lock_object_)),
      driver_(driver_of(device)),
      device_(device),
      executable_(executable),
      gather_(std::move(gather)),
      scatter_(std::move(scatter)) {}

torch::AotiShim::View GraphCall::must_view(nb::handle tensor) const {
  const auto view = view_of(api_, shim_, tensor.ptr());
  if (!view)
    throw Error(ErrorCode::invalid_argument, "a graph was given a tensor that torch does not describe");
  return *view;
}

void GraphCall::add_static_input(std::size_t index, nb::handle tensor) {
  static_inputs_.push_back({index, TensorSignature(must_view(tensor))});
}

void GraphCall::add_output_copy(nb::handle tensor) {
  TensorSignature signature(must_view(tensor));
  std::size_t bytes = shim_.element_size(signature.dtype);
  for (const std::int64_t size : signature.sizes()) bytes *= static_cast<std::size_t>(size);
  output_copies_.push_back({std::move(signature), bytes});
}

void GraphCall::add_result(Kind kind, std::size_t index, nb::object object) {
  if (kind == Kind::new_output && index >= output_copies_.size())
    throw Error(ErrorCode::invalid_argument, "a result of a graph has no output copy");
  results_.push_back({kind, index, std::move(object)});
}

bool GraphCall::is_in_place(Arguments arguments) const noexcept {
  return std::all_of(static_inputs_.begin(), static_inputs_.end(), [&](const StaticInput& input) {
    if (input.index >= arguments.size()) return false;
    const auto view = view_of(api_, shim_, arguments[input.index]);
    return view && input.signature.is(*view);
  });
}

std::vector<CopyRange> GraphCall::ranges_in(Arguments arguments) const {
  std::vector<CopyRange> ranges;
  ranges.reserve(copied_inputs_.size());
  for (const CopiedInput& input : copied_inputs_) {
    if (input.index >= arguments.size())
      throw Error(ErrorCode::invalid_argument, "a graph was given fewer inputs than it was captured with");
    ranges.push_back({input.at, must_view(arguments[input.index]).data, input.bytes});
  }
  return ranges;
}

/// Allocates a result through torch's own allocator, so that record_stream() works.
nb::object GraphCall::make_new_output(const OutputCopy& copy, CopyRange& range) const {
  const TensorSignature& signature = copy.signature;
  const auto tensor = shim_.empty_strided(signature.sizes(), signature.strides(), signature.dtype,
                                          signature.device_type, signature.device_index);
  range = {static_cast<std::byte*>(shim_.data(tensor)), signature.data, copy.bytes};
  return shim_.to_python(tensor);
}

void GraphCall::set(const std::vector<GraphNode>& nodes, std::span<const CopyRange> ranges) const {
  for (const GraphNode node : nodes) {
    const auto some = ranges.first(std::min(ranges.size(), GraphDriver::kMaxRanges));
    driver_.set_copy(device_.index, executable_, node, some);
    ranges = ranges.subspan(some.size());
  }
}

/// Sets the ranges of the nodes if they differ from the last call. REQUIRES: the lock.
void GraphCall::set_if_changed(const std::vector<GraphNode>& nodes, std::span<const CopyRange> ranges,
                               std::vector<CopyRange>& last) const {
  const auto is_same = [](const CopyRange& a, const CopyRange& b) {
    return a.to == b.to && a.from == b.from;
  };
  if (std::equal(ranges.begin(), ranges.end(), last.begin(), last.end(), is_same)) return;
  last.clear();  // until all nodes have theirs
  set(nodes, ranges);
  last.assign(ranges.begin(), ranges.end());
}

std::optional<std::vector<nb::object>> GraphCall::run(Arguments arguments, nb::handle launcher,
                                                      bool looked_at) {
  if (!looked_at && !is_in_place(arguments)) return std::nullopt;
  const std::vector<CopyRange> in = ranges_in(arguments);
  std::vector<CopyRange> out(output_copies_.size());
  std::vector<nb::object> new_outputs;
  new_outputs.reserve(output_copies_.size());
  for (std::size_t i = 0; i < output_copies_.size(); ++i)
    new_outputs.push_back(make_new_output(output_copies_[i], out[i]));
  const Stream stream = api_.current_stream(device_);
  const bool launches = launcher.is_none();
  const bool has_run = without_gil([&] {
    const std::lock_guard lock(lock_);
    if (!executable_ || (!looked_at && !lock_.is_open())) return false;
    lock_.enter(stream);
    set_if_changed(gather_, in, last_in_);
    set_if_changed(scatter_, out, last_out_);
    if (launches) {
      driver_.launch(device_.index, executable_, stream);
      lock_.leave(stream);
    }
    return true;
  });
  if (!has_run) return std::nullopt;
  if (!launches) launcher();  // the caller has the lock, and records the end
  return new_outputs;
}

nb::list GraphCall::results(Arguments arguments, const std::vector<nb::object>& new_outputs) const {
  nb::list all;
  for (const Result& result : results_) switch (result.kind) {
      case Kind::new_output: all.append(new_outputs[result.index]); break;
      case Kind::argument:
        if (result.index >= arguments.size())
          throw Error(ErrorCode::invalid_argument, "a result of a graph is an input that it was not given");
        all.append(nb::handle(arguments[result.index]));
        break;
      case Kind::object: all.append(result.object); break;
    }
  return all;
}

int GraphCall::traverse(visitproc visit, void* arg) {
  for (const Result& result : results_) Py_VISIT(result.object.ptr());
  Py_VISIT(lock_object_.ptr());
  return 0;
}

void GraphCall::clear() {
  close();
  std::vector<Result> results;  // destructors may run Python code, which may call traverse()
  results.swap(results_);
}

}  // namespace onecopy::python
