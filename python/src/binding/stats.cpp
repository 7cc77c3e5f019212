// SPDX-License-Identifier: Apache-2.0
#include "onecopy/share/stats.h"

#include <fmt/format.h>
#include <nanobind/stl/string.h>

#include <array>
#include <cmath>

#include "binding/args.h"
#include "binding/gil.h"
#include "binding/kept.h"
#include "binding/module.h"
#include "onecopy/core/error.h"
#include "onecopy/share/share.h"
#include "share/format/info_text.h"
#include "share/session.h"
#include "torch/torch.h"

namespace onecopy::python {
namespace {

nb::dict to_dict(const Stats& stats) {
  nb::dict all;
  for (const auto& [name, count] : kStatsFields) all[name] = stats.*count;
  return all;
}

nb::dict stats_with_torch() {
  nb::dict all = to_dict(without_gil([] { return onecopy::stats(); }));
  const nb::dict counters =
      nb::cast<nb::dict>(nb::module_::import_("onecopy._core").attr("torch_counters")());
  for (const auto& [name, count] : counters) all[nb::str("torch_") + nb::str(name)] = count;
  return all;
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

/// Handles that were pickled so long ago are not waited for any more.
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
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("older_than must be 0 seconds or more, not {}", short_repr(older_than)));
    end_holds(seconds);
  }
  torch::collect();
  drop_unneeded();
  without_gil([] { collect(); });
}

std::uint64_t trim_idle(nb::handle device) {
  std::optional<Device> only;
  if (!device.is_none()) only = device_arg(device, "device");
  torch::collect();
  drop_unneeded();
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

void init_stats(nb::module_& m) {
  m.def("stats", &stats_with_torch, nb::sig("def stats() -> dict[str, int]"),
        "The holders of this process's memory, and its holdings of others' memory. Names with\n"
        "``bytes`` count bytes, all others objects:\n"
        "\n"
        "- ``shared_total``, ``opened_total``: handles made and tensors opened since the start;\n"
        "- ``live_blocks``, ``live_bytes``: allocated here and referenced here;\n"
        "- ``limbo``: blocks freed here, still held by borrowers;\n"
        "- ``in_transit``: blocks kept for receivers that have not taken them yet;\n"
        "- ``segments``, ``bytes_shared``: of our own, and the physical memory reserved in them;\n"
        "- ``device_segments``, ``device_bytes``: those among them on devices;\n"
        "- ``foreign_segments``: of other processes, mapped here;\n"
        "- ``borrowers``, ``owners``: processes attached to this one, and those it is attached\n"
        "  to;\n"
        "- ``leases``: claims of this process on blocks of others;\n"
        "- ``deposits``: segments of others kept open for receivers to come;\n"
        "- ``unkept``: segments put into queues that do not keep them: if their process dies, items\n"
        "  still in the queue are lost. It can fall again: one whose queue's creator was stopped\n"
        "  counts until a later put has asked again, and none counts once its queue is gone;\n"
        "- ``descriptors``: open descriptors of the whole process;\n"
        "- ``host_waits``: how often this process waited in place of a stream, on devices whose\n"
        "  streams cannot wait for other processes;\n"
        "- ``direct_copies``: copies from one card to another that the card which is written to made\n"
        "  by itself; ``staged_copies``, ``staged_bytes``: those that the driver made by way of the\n"
        "  host, for want of peer access (CUDA devices);\n"
        "- ``torch_moved``, ``torch_moved_by_torch``, ``torch_adopted``: how storages of torch\n"
        "  came into shared memory.");
  m.def("collect", &collect_older, nb::arg("older_than") = nb::none(),
        nb::sig("def collect(older_than: float | None = None) -> None"),
        "Gives back now, not later: freed memory, mappings of owners that are gone. Drops in default\n"
        "streams of devices are marked and ended, too; idle streams are given a millisecond to pass\n"
        "those marks.\n"
        "\n"
        "Args:\n"
        "    older_than: also stop keeping memory for handles that were pickled more seconds ago\n"
        "        than this and never opened. Without it that takes ten minutes; handles that\n"
        "        multiprocessing pickled for its pipes and queues are kept until this process ends.");
  m.def("_trim", &trim_idle, nb::arg("device").none(), "onecopy.torch.trim(), but for what torch has.");
  m.def("list_owners", &owners, nb::sig("def list_owners() -> list[dict[str, typing.Any]]"),
        "Lists all processes of this user that own or serve shared memory. Processes that do not\n"
        "answer are left out.\n"
        "\n"
        "Returns:\n"
        "    For each a dict of ``pid``, ``name``, ``stats`` (as ``stats()``, without torch's),\n"
        "    ``devices`` (dicts of ``device``, ``uuid``, ``segments`` and ``bytes``),\n"
        "    ``borrowers`` (dicts of ``pid``, ``name`` and ``claims``: the blocks that it holds),\n"
        "    ``in_transit`` (dicts of ``blocks``, ``age_seconds`` and ``where`` they wait),\n"
        "    ``groups`` (of rpc: dicts as ``onecopy ls --rpc --format json`` prints them) and\n"
        "    ``arenas`` (of captured graphs: dicts of ``device``, the bytes ``shared`` by all graphs,\n"
        "    ``own`` to one and ``mapped`` as addresses, ``windows``, ``parked``).");
  m.def("strategy", &strategy_name,
        nb::sig("def strategy() -> typing.Literal['file_descriptor', 'file_system']"),
        "Returns how memory is allocated: see ``set_strategy()``.");
  m.def("set_strategy", &set_strategy_by_name, nb::arg("strategy").none(),
        nb::sig("def set_strategy(strategy: typing.Literal['file_descriptor', 'file_system']) -> None"),
        "Sets how memory is allocated: ``\"file_descriptor\"``, anonymous memory with nothing to\n"
        "leak, or ``\"file_system\"``, files in /dev/shm for programs that need names: ``gc`` of the\n"
        "command or the next program that uses onecopy removes those of killed processes.");
}

}  // namespace onecopy::python
