// SPDX-License-Identifier: Apache-2.0
#include "onecopy/graph/arena.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <memory>
#include <optional>
#include <string>

#include "binding/gil.h"
#include "binding/module.h"
#include "onecopy/core/error.h"

/// The memory behind onecopy.graphs.
namespace onecopy::python {
namespace {

using graph::Arena;
using graph::Footprint;
using graph::Window;

std::shared_ptr<Arena> make_arena(std::optional<std::size_t> limit) {
  graph::ArenaOptions options;
  if (limit) options.limit_bytes = *limit;
  return Arena::make(kCpu, options);
}

/// The bytes of a window, which the buffer keeps. Nobody looks at them while the arena is parked.
int fill_view(PyObject* self, Py_buffer* view, int flags) {
  const Window& window = *nb::inst_ptr<Window>(self);
  return PyBuffer_FillInfo(view, self, window.base(), static_cast<Py_ssize_t>(window.size()), 0, flags);
}

PyType_Slot window_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(&fill_view)}, {0, nullptr}};

}  // namespace

void init_graph(nb::module_& m) {
  nb::class_<Footprint>(m, "_GraphFootprint", "What an arena takes, in bytes.")
      .def_ro("shared", &Footprint::shared, "Physical memory, shown by all windows.")
      .def_ro("mapped", &Footprint::mapped, "Addresses of all windows together.")
      .def_ro("windows", &Footprint::windows)
      .def_ro("parked", &Footprint::parked);
  nb::class_<Window>(m, "_GraphWindow", nb::type_slots(window_slots),
                     "Addresses of one capture over the pages of its arena; a buffer of its bytes.")
      .def_prop_ro("nbytes", &Window::size);
  nb::class_<Arena>(m, "_GraphArena",
                    "Scratch memory of captured graphs on the CPU: as much as the largest.")
      .def(nb::new_(&make_arena), nb::arg("limit") = nb::none(), "``limit`` in bytes; None: no limit.")
      .def(
          "open",
          [](Arena& arena, std::size_t nbytes) { return without_gil([&] { return arena.open(nbytes); }); },
          nb::arg("nbytes"), "A window. Raises OutOfMemory, InvalidArgument while parked.")
      .def(
          "park", [](Arena& arena) { without_gil([&] { arena.park(); }); }, "Gives the memory back.")
      .def(
          "resume", [](Arena& arena) { without_gil([&] { arena.resume(); }); },
          "Gets memory again. Raises OutOfMemory.")
      .def("footprint", &Arena::footprint);
}

}  // namespace onecopy::python
