// SPDX-License-Identifier: Apache-2.0
#include "onecopy/graph/arena.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <string>
#include <utility>

#include "binding/args.h"
#include "binding/gil.h"
#include "binding/module.h"
#include "graph/call_table.h"
#include "graph/pool.h"
#include "onecopy/core/error.h"
#include "onecopy/share/stats.h"
#include "os/log.h"
#include "share/session.h"
#include "torch/torch_api.h"

/// The bindings of arenas and pools for onecopy.graphs.
namespace onecopy::python {
namespace {

using graph::Arena;
using graph::Footprint;
using graph::Window;

/// The listing of an arena for `onecopy ls`. While another thread changes the arena, it shows the last known state.
class ArenaListing {
 public:
  explicit ArenaListing(const std::shared_ptr<Arena>& arena)
      : arena_(arena), device_(arena->device().str()), last_(arena->footprint()) {}

  std::optional<ArenaInfo> operator()() {
    const auto arena = arena_.lock();
    if (!arena) return std::nullopt;
    last_ = arena->try_footprint().value_or(last_);
    return ArenaInfo{device_, last_.shared, last_.own, last_.mapped, last_.windows, last_.parked};
  }

 private:
  std::weak_ptr<Arena> arena_;  // ends with its graphs
  std::string device_;
  Footprint last_;
};

/// Adds the arena to `onecopy ls`. Logs a failure, since a process that cannot be listed may use arenas, too.
void list(const std::shared_ptr<Arena>& arena) {
  try {
    Session::current().list_arena(ArenaListing(arena));
  } catch (const Error& error) {
    log_warning("onecopy ls will not show an arena on {}: {}", arena->device().str(), error.what());
  }
}

std::shared_ptr<Arena> make_arena(nb::handle device, std::optional<std::size_t> limit) {
  graph::ArenaOptions options;
  if (limit) options.limit_bytes = *limit;
  auto arena = Arena::make(device_arg(device, "device"), options);
  list(arena);
  return arena;
}

using Extents = std::vector<std::pair<std::uintptr_t, std::size_t>>;

/// Converts the addresses and sizes that torch reports, and keeps this memory alive in the pool.
void keep_alive(GraphPool& pool, const Extents& alive) {
  std::vector<graph::Extent> extents;
  for (const auto& [at, bytes] : alive) extents.push_back({at - pool.base(), bytes});
  without_gil([&] { pool.keep_alive(extents); });
}

nb::object bytes_at(GraphPool& pool, std::uintptr_t address, std::size_t bytes) {
  const torch::TorchSymbols* api = torch::TorchSymbols::get();
  if (!api) throw Error(ErrorCode::unsupported, "import torch first");
  if (pool.device() != kCpu) api->use(pool.device());
  return api->import(pool.bytes_at(address, bytes));
}

/// Exports the bytes of a window as a buffer that keeps the window. REQUIRES: nothing reads it while the arena is
/// parked.
int fill_view(PyObject* self, Py_buffer* view, int flags) {
  const Window& window = *nb::inst_ptr<Window>(self);
  if (window.device() != kCpu) {
    PyErr_SetString(PyExc_BufferError, "the host cannot access this window, which is on a device");
    return -1;
  }
  return PyBuffer_FillInfo(view, self, window.base(), static_cast<Py_ssize_t>(window.size()), 0, flags);
}

PyType_Slot window_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(&fill_view)}, {0, nullptr}};

}  // namespace

void init_graph(nb::module_& m) {
  nb::class_<Footprint>(m, "_GraphFootprint", "The size of an arena, in bytes.")
      .def_ro("shared", &Footprint::shared, "The physical memory that all windows map.")
      .def_ro("own", &Footprint::own, "The physical memory that only one window maps.")
      .def_ro("mapped", &Footprint::mapped, "The addresses of all windows together.")
      .def_ro("windows", &Footprint::windows)
      .def_ro("mappings", &Footprint::mappings, "The number of pieces of memory mapped in all windows.")
      .def_ro("parked", &Footprint::parked)
      .def_ro("aliases", &Footprint::aliases, "Whether each window has its own addresses.");
  nb::class_<Window>(m, "_GraphWindow", nb::type_slots(window_slots),
                     "The addresses of one capture over the pages of its arena, and a buffer of its bytes.")
      .def_prop_ro("nbytes", &Window::size)
      .def_prop_ro("base",
                   [](const Window& window) { return reinterpret_cast<std::uintptr_t>(window.base()); });
  nb::class_<Arena>(
      m, "_GraphArena",
      "The scratch memory of captured graphs on one device, as large as the largest graph needs.")
      .def(nb::new_(&make_arena), nb::arg("device"), nb::arg("limit") = nb::none(),
           "Makes an arena. ``limit`` is in bytes; None for no limit.")
      .def(
          "open",
          [](Arena& arena, std::size_t nbytes) { return without_gil([&] { return arena.open(nbytes); }); },
          nb::arg("nbytes"), "Opens a window. Raises OutOfMemory; InvalidArgument while parked.")
      .def(
          "park", [](Arena& arena) { without_gil([&] { arena.park(); }); },
          "Returns the memory to the system.")
      .def(
          "resume", [](Arena& arena) { without_gil([&] { arena.resume(); }); },
          "Allocates the memory again. Raises OutOfMemory.")
      .def("footprint", &Arena::footprint);
  nb::class_<GraphPool>(m, "_GraphPool", "The memory of one capture, for torch's allocator.")
      .def(nb::new_(&GraphPool::make), nb::arg("arena"), nb::arg("most"),
           "Makes a pool with ``most`` bytes of addresses.")
      .def("open", &GraphPool::open, "Serves torch's segments from this pool until close().")
      .def("close", &GraphPool::close)
      .def(
          "retire", [](GraphPool& pool) { without_gil([&] { pool.retire(); }); },
          "Releases the shared pages. REQUIRES: the caller has waited for work that used them.")
      .def("keep_alive", &keep_alive, nb::arg("alive"),
           "Moves ranges to memory that no other window maps. Their content is lost.")
      .def_prop_ro("ordinal", [](const GraphPool& pool) { return pool.device().index; })
      .def_prop_ro("base", &GraphPool::base)
      .def_prop_ro("used", &GraphPool::used, "Bytes.")
      .def_prop_ro("own", &GraphPool::own_bytes, "Bytes that no other capture shows.")
      .def_prop_ro("refusal", &GraphPool::refusal, "Why the pool last had no room, or an empty text.");
  m.def("_graph_bytes", &bytes_at, nb::arg("pool"), nb::arg("address"), nb::arg("nbytes"),
        "Returns a torch tensor on bytes of a pool, which it keeps alive.");
  init_graph_calls(m);
}

}  // namespace onecopy::python
