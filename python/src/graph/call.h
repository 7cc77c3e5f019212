// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "binding/module.h"
#include "device/graphs.h"
#include "graph/arena_lock.h"
#include "torch/torch_api.h"
#include "torch/torch_shim.h"

namespace onecopy::python {

/// The properties of a tensor at the capture of its graph, which are compared in every call.
struct TensorSignature {
  using View = torch::AotiShim::View;

  explicit TensorSignature(const View& tensor);
  /// Returns whether the dtype, sizes and strides are equal. Does not compare addresses.
  bool matches_layout(const View& tensor) const noexcept;
  bool is(const View& tensor) const noexcept { return tensor.data == data && matches_layout(tensor); }

  std::span<const std::int64_t> sizes() const noexcept {
    return std::span(numbers).first(numbers.size() / 2);
  }
  std::span<const std::int64_t> strides() const noexcept {
    return std::span(numbers).subspan(numbers.size() / 2);
  }

  std::byte* data;
  torch::AotiShim::Code dtype, device_type, device_index;
  std::vector<std::int64_t> numbers;  ///< sizes, then strides
};

/// Returns the properties of a tensor. Returns nothing, without an error, for another object or a tensor without
/// memory.
inline std::optional<torch::AotiShim::View> view_of(const torch::TorchSymbols& api,
                                                    const torch::AotiShim& shim,
                                                    PyObject* object) noexcept {
  if (!api.is_tensor(object)) return std::nullopt;
  return shim.view(object);
}

/// Calls one captured graph. A call compares inputs in place with their addresses at the capture, copies other inputs
/// into the window, launches the graph, and returns the results in new memory. The copies are nodes of the graph.
///
/// Thread safety: used with the GIL held. run() releases the GIL, and takes the arena's lock. Invariant: a graph is
/// launched only after every input in place was compared in the same call (I3).
class GraphCall {
 public:
  using Arguments = std::span<PyObject* const>;
  struct CopiedInput {
    std::size_t index;
    std::byte* at;
    std::size_t bytes;
  };
  struct StaticInput {
    std::size_t index;
    TensorSignature signature;
  };
  /// A piece of the window that is copied out as a result.
  struct OutputCopy {
    TensorSignature signature;
    std::size_t bytes;
  };
  enum class Kind { new_output, argument, object };
  struct Result {
    Kind kind;
    std::size_t index;  ///< of the output copy, or of the argument
    nb::object object;
  };

  GraphCall(nb::object lock, Device device, GraphExecutable executable, std::vector<GraphNode> gather,
            std::vector<GraphNode> scatter);
  GraphCall& operator=(GraphCall&&) = delete;

  void add_copied_input(std::size_t index, std::byte* at, std::size_t bytes) {
    copied_inputs_.push_back({index, at, bytes});
  }
  void add_static_input(std::size_t index, nb::handle tensor);
  void add_output_copy(nb::handle tensor);
  void add_result(Kind kind, std::size_t index, nb::object object);

  bool is_in_place(Arguments arguments) const noexcept;
  /// Runs the graph and returns a tensor for each output copy. `launcher`, if not None, launches the graph in the current
  /// stream. Returns nothing if the graph is closed, if the arena is not open, or if an input in place has moved; with
  /// `looked_at` the caller has checked the last two. Throws errors of the driver, and invalid_argument for arguments
  /// that do not fit the graph.
  std::optional<std::vector<nb::object>> run(Arguments arguments, nb::handle launcher, bool looked_at);
  nb::list results(Arguments arguments, const std::vector<nb::object>& new_outputs) const;
  /// Closes the graph: run() returns nothing afterwards. REQUIRES: the arena's lock.
  void close() noexcept { executable_ = nullptr; }

  std::uint64_t last_used = 0;

  int traverse(visitproc visit, void* arg);
  void clear();

 private:
  torch::AotiShim::View must_view(nb::handle tensor) const;
  std::vector<CopyRange> ranges_in(Arguments arguments) const;
  nb::object make_new_output(const OutputCopy& copy, CopyRange& range) const;
  void set(const std::vector<GraphNode>& nodes, std::span<const CopyRange> ranges) const;
  void set_if_changed(const std::vector<GraphNode>& nodes, std::span<const CopyRange> ranges,
                      std::vector<CopyRange>& last) const;

  const torch::TorchSymbols& api_;
  const torch::AotiShim& shim_;
  nb::object lock_object_;
  ArenaLock& lock_;
  GraphDriver& driver_;
  const Device device_;
  GraphExecutable executable_;  ///< none: closed
  const std::vector<GraphNode> gather_, scatter_;
  std::vector<CopiedInput> copied_inputs_;
  std::vector<StaticInput> static_inputs_;
  std::vector<OutputCopy> output_copies_;
  std::vector<Result> results_;
  std::vector<CopyRange> last_in_, last_out_;  ///< what the nodes copy now; guarded by the lock
};

}  // namespace onecopy::python
