// SPDX-License-Identifier: Apache-2.0
// Proves which words of a captured graph are addresses: see onecopy/graphs/_evidence.py.
#include "graph/evidence.h"

#include <alloca.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <set>
#include <span>
#include <tuple>

#include "binding/args.h"
#include "device/backend.h"
#include "graph/stand_ins.h"
#include "onecopy/core/error.h"

namespace onecopy::python {

MovableGraph::MovableGraph(Device device, Recording recording, graph::Relocation relocation)
    : device_(device), recording_(std::move(recording)), relocation_(std::move(relocation)) {}

std::size_t MovableGraph::move(GraphExecutable executable,
                               const std::vector<std::pair<std::size_t, std::uint64_t>>& places) {
  for (const auto& [region, base] : places)
    if (!relocation_.can_be_at(region, base))
      throw Error(ErrorCode::invalid_argument, "the graph has no proof for these places");
  std::set<std::uint32_t> nodes;
  for (const auto& [region, base] : places) {
    const auto changed = relocation_.apply(recording_, region, base);
    nodes.insert(changed.begin(), changed.end());
  }
  GraphDriver& driver = *backend(device_.type).graphs();
  for (const std::uint32_t node : nodes) driver.set(device_.index, executable, recording_.nodes[node]);
  return nodes.size();
}

namespace {

constexpr std::size_t kPainted = std::size_t{192} << 10;

/// Padding in parameters of kernels has the old content of the stack: with this it is the pattern.
[[gnu::noinline]] void paint_stack(int pattern) {
  volatile unsigned char room[kPainted];
  std::memset(const_cast<unsigned char*>(room), pattern, kPainted);
  asm volatile("" ::"r"(room) : "memory");
}

/// Calls it deeper in the stack by so many bytes.
[[gnu::noinline]] nb::object call_deeper(std::size_t bytes, nb::handle function) {
  auto* const room = static_cast<volatile char*>(alloca(bytes + 16));
  room[0] = 1;
  nb::object result = function();
  asm volatile("" ::"r"(room) : "memory");
  return result;
}

constexpr std::size_t kSmallest = 24, kLargest = 1032,
                      kStep = 16;  // blocks that glibc keeps for each thread
constexpr std::size_t kKept = 7;   // of one size
constexpr std::size_t kBeyond = std::size_t{96} << 10;

void* painted_block(std::size_t bytes, int pattern) {
  void* const block = std::malloc(bytes);
  if (block) std::memset(block, pattern, bytes);
  asm volatile("" ::"r"(block) : "memory");  // kept, though nothing reads it
  return block;
}

/// The memory that this thread's next allocations get has the pattern, for the most part. No memory of other threads
/// changes, as it would by mallopt(M_PERTURB): with that, a calloc() under way in another thread can return bytes that
/// are not zero.
void paint_heap(int pattern) {
  std::free(painted_block(kBeyond, pattern));
  for (std::size_t bytes = kSmallest; bytes <= kLargest; bytes += kStep) {
    std::array<void*, kKept> blocks{};
    for (void*& block : blocks) block = painted_block(bytes, pattern);
    for (void* const block : blocks) std::free(block);
  }
}

void paint(int pattern) {
  paint_heap(pattern);
  paint_stack(pattern);
}

using Moved = std::vector<std::tuple<std::uint64_t, std::uint64_t, std::uint64_t>>;

std::pair<std::unique_ptr<MovableGraph>, std::string> prove(nb::handle device, std::uintptr_t graph,
                                                            const std::vector<std::uintptr_t>& evidence,
                                                            const Moved& regions) {
  const Device on = device_arg(device, "device");
  GraphDriver* const driver = backend(on.type).graphs();
  if (!driver) return {nullptr, "graphs of this device cannot be read"};
  try {
    const auto read = [&](std::uintptr_t handle) {
      return driver->read(on.index, reinterpret_cast<void*>(handle));
    };
    std::vector<graph::MovedRegion> all;
    for (const auto& [base, elsewhere, bytes] : regions) all.push_back({base, elsewhere, bytes});
    const Recording home = read(evidence.at(0)), moved = read(evidence.at(1)),
                    moved_again = read(evidence.at(2)), home_again = read(evidence.at(3));
    auto proof = graph::Relocation::prove({home, home_again}, {moved, moved_again}, all);
    if (!proof.relocation) return {nullptr, proof.reason};
    Recording recording = read(graph);
    if (std::string reason = proof.relocation->difference(recording, home); !reason.empty())
      return {nullptr, std::move(reason)};
    return {std::make_unique<MovableGraph>(on, std::move(recording), std::move(*proof.relocation)), ""};
  } catch (const Error& error) {
    return {nullptr, error.what()};
  }
}

std::unique_ptr<graph::StandIns> make_stand_ins(
    nb::handle device, const std::vector<std::pair<std::uint64_t, std::uint64_t>>& memory) {
  std::vector<graph::Region> originals;
  for (const auto& [base, bytes] : memory) originals.push_back({base, bytes});
  return std::make_unique<graph::StandIns>(device_arg(device, "device"), originals);
}

}  // namespace

void init_graph_evidence(nb::module_& m) {
  nb::class_<MovableGraph>(m, "_MovableGraph", "A captured graph whose inputs in place may be elsewhere.")
      .def("can_be_at", &MovableGraph::can_be_at, nb::arg("region"), nb::arg("base"))
      .def(
          "move",
          [](MovableGraph& graph, std::uintptr_t executable,
             const std::vector<std::pair<std::size_t, std::uint64_t>>& places) {
            return graph.move(reinterpret_cast<GraphExecutable>(executable), places);
          },
          nb::arg("executable"), nb::arg("places"), "How many nodes were changed.")
      .def(
          "difference",
          [](const MovableGraph& graph, nb::handle device, std::uintptr_t fresh, std::uintptr_t again) {
            const Device on = device_arg(device, "device");
            GraphDriver& driver = *backend(on.type).graphs();
            return graph.difference(driver.read(on.index, reinterpret_cast<void*>(fresh)),
                                    driver.read(on.index, reinterpret_cast<void*>(again)));
          },
          nb::arg("device"), nb::arg("fresh"), nb::arg("again"),
          "Why it has other addresses than two captures at its places; empty when it has the same.")
      .def_prop_ro("words", &MovableGraph::words)
      .def_prop_ro("noise", &MovableGraph::noise);
  nb::class_<graph::StandIns>(m, "_StandIns", "Addresses that stand in for others in a capture.")
      .def(nb::new_(&make_stand_ins), nb::arg("device"), nb::arg("memory"))
      .def("at", &graph::StandIns::at, nb::arg("index"));
  m.def("_prove_relocation", &prove, nb::arg("device"), nb::arg("graph"), nb::arg("evidence"),
        nb::arg("regions"),
        "The graph, or None and why there is no proof. The evidence is a capture at home, two "
        "elsewhere, and one more at home.");
  m.def("_paint", &paint, nb::arg("pattern"),
        "Fills memory that nothing uses: the stack below, and the heap that this thread allocates from "
        "next.");
  m.def("_call_deeper", &call_deeper, nb::arg("nbytes"), nb::arg("function"));
}

}  // namespace onecopy::python
