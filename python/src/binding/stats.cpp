// SPDX-License-Identifier: Apache-2.0
#include "onecopy/share/stats.h"

#include <fmt/format.h>
#include <nanobind/stl/string.h>

#include <array>

#include "binding/args.h"
#include "binding/gil.h"
#include "binding/kept.h"
#include "binding/module.h"
#include "core/throw_error.h"
#include "onecopy/share/share.h"
#include "share/format/info_text.h"
#include "share/session.h"
#include "torch/torch.h"

namespace onecopy::python {
namespace {

nb::dict stats_with_torch() {
  const Stats stats = without_gil([] { return onecopy::stats(); });
  nb::dict all;
  for (const StatsField& field : kStatsFields) all[field.name] = stats.*field.value;
  const nb::dict counters =
      nb::cast<nb::dict>(nb::module_::import_("onecopy._core").attr("torch_counters")());
  for (const auto& [name, count] : counters) all[nb::str("torch_") + nb::str(name)] = count;
  return all;
}

/// Returns the docstring of stats(), which names every counter.
std::string doc_of_stats() {
  std::string doc =
      "Returns counters of this process's memory, its holders, and memory of other processes.\n\n"
      "`onecopy ls --format json` and ``prometheus`` have the same names.\n\n";
  for (const StatsField& field : kStatsFields)
    doc += fmt::format("- ``{}``:\n  {};\n", field.name, field.help);
  return doc +
         "- ``torch_moved``, ``torch_moved_by_torch``, ``torch_adopted``: storages of torch that onecopy\n"
         "  moved to shared memory, that torch moved, and that torch had shared before.";
}

nb::list owners() {
  const nb::object parse = nb::module_::import_("json").attr("loads");
  nb::list all;
  for (const OwnerInfo& owner : without_gil([] { return list_owners(); })) {
    nb::object one = parse(to_json(owner));
    one["in_transit"] = one.attr("pop")("transit");
    all.append(one);
  }
  return all;
}

/// Ends the holds of handles that were pickled more than `older_than` seconds ago.
void end_holds(double older_than) {
  using Seconds = std::chrono::duration<double>;
  const auto age =
      std::chrono::duration_cast<std::chrono::steady_clock::duration>(Seconds(std::min(older_than, 1e6)));
  if (Session* session = Session::existing()) session->holds().end_older(Holds::Clock::now() - age);
}

void collect_older(nb::handle older_than) {
  if (!older_than.is_none()) {
    const double seconds = PyFloat_AsDouble(older_than.ptr());
    if (seconds == -1.0 && PyErr_Occurred()) {
      PyErr_Clear();
      raise_type_error(fmt::format("older_than must be None or seconds, not {}", short_repr(older_than)));
    }
    if (!(seconds >= 0))
      throw_error(ErrorCode::invalid_argument, "older_than must be 0 seconds or more, not {}",
                  short_repr(older_than));
    end_holds(seconds);
  }
  torch::collect();
  drain_decrefs();
  without_gil([] { collect(); });
}

std::uint64_t trim_idle(nb::handle device) {
  std::optional<Device> only;
  if (!device.is_none()) only = device_arg(device, "device");
  torch::collect();
  drain_decrefs();
  return without_gil([&] { return trim(only); });
}

const char* strategy_name() {
  return strategy() == Strategy::file_system ? "file_system" : "file_descriptor";
}

void set_strategy_by_name(nb::handle name) {
  constexpr std::array<std::string_view, 2> kWords{"file_descriptor", "file_system"};
  const std::string message =
      fmt::format("strategy must be \"file_descriptor\" or \"file_system\", not {}{}", short_repr(name),
                  did_you_mean(name, kWords));
  if (!nb::isinstance<nb::str>(name)) raise_type_error(message);
  const std::string text = text_of(name, "strategy");
  if (text == "file_descriptor") return set_strategy(Strategy::file_descriptor);
  if (text == "file_system") return set_strategy(Strategy::file_system);
  throw Error(ErrorCode::invalid_argument, message);
}

}  // namespace

// NOLINTNEXTLINE(readability-function-size): a list of definitions with their docstrings
void init_stats(nb::module_& m) {
  static const std::string doc = doc_of_stats();
  m.def("stats", &stats_with_torch, nb::sig("def stats() -> dict[str, int]"), doc.c_str());
  m.def("collect", &collect_older, nb::arg("older_than") = nb::none(),
        nb::sig("def collect(older_than: float | None = None) -> None"),
        "Returns freed memory and unmaps memory of ended owners now instead of later.\n"
        "\n"
        "It also completes releases in default streams of devices, and waits up to a millisecond for\n"
        "idle streams.\n"
        "\n"
        "Args:\n"
        "    older_than: also releases memory kept for handles that were pickled more than this many\n"
        "        seconds ago and never opened. By default this memory is kept for ten minutes, or until\n"
        "        this process ends if multiprocessing pickled the handle for its pipes and queues.");
  m.def("_trim", &trim_idle, nb::arg("device").none(),
        "Does the part of onecopy.torch.trim() without torch.");
  m.def("list_owners", &owners, nb::sig("def list_owners() -> list[dict[str, typing.Any]]"),
        "Lists all processes of this user that own or serve shared memory. Processes that do not\n"
        "answer are left out.\n"
        "\n"
        "Returns:\n"
        "    For each process a dict of ``pid``, ``name``, ``stats`` (as ``stats()``, without torch's),\n"
        "    ``devices`` (dicts of ``device``, ``uuid``, ``segments`` and ``bytes``),\n"
        "    ``borrowers`` (dicts of ``pid``, ``name`` and ``claims``: the number of blocks held),\n"
        "    ``in_transit`` (dicts of ``blocks``, ``age_seconds`` and ``where`` they wait),\n"
        "    ``groups`` (of rpc: dicts as ``onecopy ls --rpc --format json`` prints them) and\n"
        "    ``arenas`` (of captured graphs: dicts of ``device``, the bytes ``shared`` by all graphs,\n"
        "    ``own`` to one and ``mapped`` as addresses, ``windows``, ``parked``).");
  m.def("strategy", &strategy_name,
        nb::sig("def strategy() -> typing.Literal['file_descriptor', 'file_system']"),
        "Returns how memory is allocated: see ``set_strategy()``.");
  m.def(
      "set_strategy", &set_strategy_by_name, nb::arg("strategy").none(),
      nb::sig("def set_strategy(strategy: typing.Literal['file_descriptor', 'file_system']) -> None"),
      "Sets how memory is allocated: ``\"file_descriptor\"`` for anonymous memory, which cannot leak,\n"
      "or ``\"file_system\"`` for files in /dev/shm, for programs that need names. ``onecopy gc`` or the\n"
      "next program that uses onecopy removes the files of killed processes.");
}

}  // namespace onecopy::python
