// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "binding/module.h"
#include "device/graphs.h"
#include "graph/arena_lock.h"
#include "torch/torch_api.h"
#include "torch/torch_shim.h"

namespace onecopy::python {

/// How a tensor was when its graph was captured, to be compared in every call.
struct TensorFacts {
  using View = torch::Shim::View;

  explicit TensorFacts(const View& tensor);
  /// Does not compare addresses.
  bool is_alike(const View& tensor) const noexcept;
  bool is(const View& tensor) const noexcept { return tensor.data == data && is_alike(tensor); }

  std::span<const std::int64_t> sizes() const noexcept {
    return std::span(numbers).first(numbers.size() / 2);
  }
  std::span<const std::int64_t> strides() const noexcept {
    return std::span(numbers).subspan(numbers.size() / 2);
  }

  std::byte* data;
  torch::Shim::Code dtype, device_type, device_index;
  std::vector<std::int64_t> numbers;  ///< sizes, then strides
};

/// Empty, and no error, for an object that is no tensor, or one without memory of its own.
inline std::optional<torch::Shim::View> view_of(const torch::Api& api, const torch::Shim& shim,
                                                PyObject* object) noexcept {
  if (!api.is_tensor(object)) return std::nullopt;
  return shim.view(object);
}

/// The calls of one captured graph. Inputs are compared with their places or copied into their slots, the graph is
/// launched, and the results are in memory of the caller's. Copies in and out are nodes of the graph.
///
/// Thread safety: used with the GIL held. run() releases it, and takes the arena's lock. Invariant: a launch is under
/// way only after every place was compared in that call (I3).
class GraphCall {
 public:
  using Arguments = std::span<PyObject* const>;
  struct Slot {
    std::size_t index;
    std::byte* at;
    std::size_t bytes;
  };
  struct Place {
    std::size_t index;
    nb::object tensor;
    TensorFacts facts;
  };
  /// Memory of the window that is copied out.
  struct Source {
    TensorFacts facts;
    std::size_t bytes;
  };
  enum class Kind { fresh, argument, object };
  struct Result {
    Kind kind;
    std::size_t index;  ///< of the source, or of the argument
    nb::object object;
  };

  GraphCall(nb::object lock, Device device, GraphExecutable executable, std::vector<GraphNode> gather,
            std::vector<GraphNode> scatter);
  GraphCall(const GraphCall&) = delete;
  GraphCall& operator=(const GraphCall&) = delete;

  void add_slot(std::size_t index, std::byte* at, std::size_t bytes) {
    slots_.push_back({index, at, bytes});
  }
  void add_place(std::size_t index, nb::handle tensor);
  void add_source(nb::handle tensor);
  void add_result(Kind kind, std::size_t index, nb::object object);

  bool is_in_place(Arguments arguments) const noexcept;
  /// Returns a tensor for each source. `launcher`, if there is one, launches the graph in the current stream. None if
  /// the graph is closed; and, unless the caller has `looked_at` both, if the arena is not open to it or an input in
  /// place is elsewhere. Throws the driver's refusals, invalid_argument for arguments that are not those of the graph.
  std::optional<std::vector<nb::object>> run(Arguments arguments, nb::handle launcher, bool looked_at);
  nb::list results(Arguments arguments, const std::vector<nb::object>& fresh) const;
  /// No run() from now on. With the arena's lock.
  void close() noexcept { executable_ = nullptr; }

  std::size_t runs() const noexcept { return runs_; }
  std::uint64_t last_used = 0;

  int traverse(visitproc visit, void* arg);
  void clear();

 private:
  torch::Shim::View must_view(nb::handle tensor) const;
  std::vector<CopyRange> ranges_in(Arguments arguments) const;
  nb::object make_fresh(const Source& source, CopyRange& range) const;
  void set(const std::vector<GraphNode>& nodes, std::span<const CopyRange> ranges) const;
  void set_if_changed(const std::vector<GraphNode>& nodes, std::span<const CopyRange> ranges,
                      std::vector<CopyRange>& last) const;

  const torch::Api& api_;
  const torch::Shim& shim_;
  nb::object lock_object_;
  ArenaLock& lock_;
  GraphDriver& driver_;
  const Device device_;
  GraphExecutable executable_;  ///< none: closed
  const std::vector<GraphNode> gather_, scatter_;
  std::vector<Slot> slots_;
  std::vector<Place> places_;
  std::vector<Source> sources_;
  std::vector<Result> results_;
  std::vector<CopyRange> last_in_, last_out_;  ///< that the nodes copy now; with the lock
  std::size_t runs_ = 0;
};

}  // namespace onecopy::python
