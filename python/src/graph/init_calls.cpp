// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <span>
#include <utility>

#include "binding/args.h"
#include "binding/gil.h"
#include "device/backend.h"
#include "graph/call_table.h"
#include "onecopy/core/error.h"

namespace onecopy::python {
namespace {

using Handles = std::vector<std::uintptr_t>;

std::vector<GraphNode> nodes_of(const Handles& handles) {
  std::vector<GraphNode> nodes;
  for (const std::uintptr_t handle : handles) nodes.push_back(reinterpret_cast<GraphNode>(handle));
  return nodes;
}

/// Adds nodes to the capture of the stream that copy each range of memory onto itself; their ranges are set later.
Handles capture_copies(nb::handle device, std::uintptr_t stream,
                       const std::vector<std::pair<std::uintptr_t, std::size_t>>& memory) {
  const Device on = device_arg(device, "device");
  GraphDriver* graphs = backend(on.type).graphs();
  if (!graphs) throw Error(ErrorCode::unsupported, "graphs of this device do not support copies");
  std::vector<CopyRange> ranges;
  ranges.reserve(memory.size());
  for (const auto& [at, bytes] : memory)
    ranges.push_back({reinterpret_cast<std::byte*>(at), reinterpret_cast<const std::byte*>(at), bytes});
  Handles nodes;
  std::span<const CopyRange> rest = ranges;
  while (!rest.empty()) {
    const auto some = rest.first(std::min(rest.size(), GraphDriver::kMaxRanges));
    GraphNode node = graphs->copy(on.index, {reinterpret_cast<void*>(stream)}, some);
    if (!node) throw Error(ErrorCode::unsupported, "the capture recorded no node for a copy");
    nodes.push_back(reinterpret_cast<std::uintptr_t>(node));
    rest = rest.subspan(some.size());
  }
  return nodes;
}

void bind_arena_lock(nb::module_& m) {
  nb::class_<ArenaLock>(m, "_ArenaLock", "The lock of an arena. Its thread may take it again.")
      .def(nb::init<>())
      .def(
          "bind", [](ArenaLock& lock, nb::handle device) { lock.bind(device_arg(device, "device")); },
          nb::arg("device"))
      .def(
          "acquire",
          [](ArenaLock& lock, bool blocking) {
            if (lock.try_lock()) return true;
            if (blocking) without_gil([&] { lock.lock(); });
            return blocking;
          },
          nb::arg("blocking") = true)
      .def("release", &ArenaLock::unlock)
      .def(
          "enter_stream",
          [](ArenaLock& lock, std::uintptr_t stream) { lock.enter({reinterpret_cast<void*>(stream)}); },
          nb::arg("stream"), "Makes the stream wait for the work of the last holder.")
      .def(
          "leave_stream",
          [](ArenaLock& lock, std::uintptr_t stream) { lock.leave({reinterpret_cast<void*>(stream)}); },
          nb::arg("stream"), "Makes the work of the next holder wait for all work of the stream.")
      .def(
          "wait", [](ArenaLock& lock) { without_gil([&] { lock.wait(); }); },
          "Waits on the host for the work of the last holder.")
      .def("set_running", &ArenaLock::set_running, nb::arg("is_running"))
      .def("set_leases", &ArenaLock::set_leases, nb::arg("leases"));
}

nb::object run(GraphCall& call, nb::handle arguments, nb::handle launcher) {
  const auto new_outputs = call.run(items_of(arguments), launcher, true);
  if (!new_outputs) throw Error(ErrorCode::invalid_argument, "the graph is closed");
  return list_of(*new_outputs);
}

void bind_call(nb::module_& m) {
  nb::class_<GraphCall>(m, "_GraphCall", nb::type_slots(gc_slots<GraphCall>),
                        "A captured graph, and its calls.")
      .def(
          "__init__",
          [](GraphCall* self, nb::object lock, nb::handle device, std::uintptr_t executable,
             const Handles& gather, const Handles& scatter) {
            new (self) GraphCall(std::move(lock), device_arg(device, "device"),
                                 reinterpret_cast<GraphExecutable>(executable), nodes_of(gather),
                                 nodes_of(scatter));
          },
          nb::arg("lock"), nb::arg("device"), nb::arg("executable"), nb::arg("gather"), nb::arg("scatter"))
      .def(
          "add_copied_input",
          [](GraphCall& call, std::size_t index, std::uintptr_t at, std::size_t bytes) {
            call.add_copied_input(index, reinterpret_cast<std::byte*>(at), bytes);
          },
          nb::arg("index"), nb::arg("at"), nb::arg("nbytes"))
      .def("add_static_input", &GraphCall::add_static_input, nb::arg("index"), nb::arg("tensor"))
      .def("add_output_copy", &GraphCall::add_output_copy, nb::arg("tensor"))
      .def(
          "add_new_output",
          [](GraphCall& call, std::size_t output_copy) {
            call.add_result(GraphCall::Kind::new_output, output_copy, nb::none());
          },
          nb::arg("output_copy"))
      .def(
          "add_argument",
          [](GraphCall& call, std::size_t index) {
            call.add_result(GraphCall::Kind::argument, index, nb::none());
          },
          nb::arg("index"))
      .def(
          "add_object",
          [](GraphCall& call, nb::object value) {
            call.add_result(GraphCall::Kind::object, 0, std::move(value));
          },
          nb::arg("value").none())
      .def("run", &run, nb::arg("arguments"), nb::arg("launcher") = nb::none(),
           "Runs the graph and returns a tensor for each source. REQUIRES: the lock.")
      .def(
          "is_in_place",
          [](const GraphCall& call, nb::handle arguments) { return call.is_in_place(items_of(arguments)); },
          nb::arg("arguments"))
      .def("close", &GraphCall::close)
      .def_rw("last_used", &GraphCall::last_used);
}

void bind_table(nb::module_& m) {
  nb::class_<GraphCallTable>(m, "_GraphCallTable", nb::type_slots(gc_slots<GraphCallTable>),
                             "The captured graphs of one function.")
      .def(
          "__init__",
          [](GraphCallTable* self, nb::handle device, std::vector<std::size_t> keyed,
             std::size_t most_elements) {
            new (self) GraphCallTable(device_arg(device, "device"), std::move(keyed), most_elements);
          },
          nb::arg("device"), nb::arg("keyed"), nb::arg("most_elements"))
      .def("add", &GraphCallTable::add, nb::arg("arguments"), nb::arg("call"))
      .def("remove", &GraphCallTable::remove, nb::arg("call"))
      .def("tick", &GraphCallTable::tick)
      .def_prop_ro("hits", &GraphCallTable::hits)
      .def("__call__", &GraphCallTable::call, nb::arg("boxed"), "The results; None: declined.");
}

}  // namespace

void init_graph_calls(nb::module_& m) {
  bind_arena_lock(m);
  bind_call(m);
  bind_table(m);
  m.def("_graph_copies", &capture_copies, nb::arg("device"), nb::arg("stream"), nb::arg("memory"),
        "Nodes for copies in the graph that the stream captures.");
  m.def(
      "_prepare_graphs",
      [](nb::handle device) {
        const Device on = device_arg(device, "device");
        GraphDriver* graphs = backend(on.type).graphs();
        if (!graphs || !torch::AotiShim::get()) return false;
        try {
          graphs->prepare(on.index);
        } catch (const Error& error) {
          if (error.code() != ErrorCode::unsupported) throw;
          return false;  // an old driver
        }
        return true;
      },
      nb::arg("device"),
      "Before the first capture on a device; False: copies cannot be nodes of graphs here.");
}

}  // namespace onecopy::python
