// SPDX-License-Identifier: Apache-2.0
#include "store/parts.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "binding/args.h"
#include "binding/gil.h"
#include "binding/open.h"
#include "binding/pin.h"
#include "store/format/kv_pool_metrics.h"

namespace onecopy::python {
namespace {

using store::KvPool;
using Numbers = std::vector<std::uint32_t>;
using Keys = std::vector<nb::bytes>;

// What a member of KvPool takes for an argument of Python.
std::string given(const nb::bytes& key) { return {key.c_str(), key.size()}; }
std::vector<std::string> given(const Keys& keys) {
  std::vector<std::string> texts;
  texts.reserve(keys.size());
  for (const nb::bytes& key : keys) texts.push_back(given(key));
  return texts;
}
const auto& given(const auto& argument) { return argument; }

/// Leaves out files_removed, which only Store::kv_pool_stats() says.
nb::dict stats_of(const store::KvPoolStats& stats) {
  nb::dict all;
  for (const store::KvPoolMetric& metric : store::kKvPoolMetrics)
    if (metric.value != &store::KvPoolStats::files_removed) all[metric.name] = stats.*metric.value;
  return all;
}

nb::tuple events_of(const store::KvPoolEvents& events) {
  nb::list all;
  for (const store::KvPoolEvent& event : events.events)
    all.append(nb::make_tuple(event.stored, nb::bytes(event.key.data(), event.key.size())));
  return nb::make_tuple(events.next, events.are_missing, all);
}

std::vector<std::optional<bool>> presence_of(const KvPool& pool, const Keys& keys) {
  std::vector<std::optional<bool>> all;
  for (const store::KvPresence one : pool.contains(given(keys)))
    all.push_back(one == store::KvPresence::writing ? std::nullopt
                                                    : std::optional(one == store::KvPresence::whole));
  return all;
}

/// Names what Python gives for a parameter T of a member.
template <class T>
struct FromPython {
  using Argument = T;
};
template <>
struct FromPython<std::string_view> {
  using Argument = nb::bytes;
};
template <>
struct FromPython<std::span<const std::string>> {
  using Argument = Keys;
};
template <class Number>
struct FromPython<std::span<const Number>> {
  using Argument = std::vector<Number>;
};

/// Returns a function of Python that calls the member without the GIL.
template <class Result, class... Parameters>
auto function_of(Result (KvPool::*member)(Parameters...)) {
  return [member](KvPool& pool, const typename FromPython<Parameters>::Argument&... arguments) {
    return [&](const auto&... converted) {
      return without_gil([&] { return (pool.*member)(converted...); });
    }(given(arguments)...);
  };
}

void add_blocks(nb::class_<KvPool>& pool) {
  pool.def("put", function_of(&KvPool::put))
      .def("write", function_of(&KvPool::write))
      .def("find", function_of(&KvPool::find))
      .def("find_all", function_of(&KvPool::find_all))
      .def("contains", &presence_of)
      .def("pin", function_of(&KvPool::pin))
      .def("remove", function_of(&KvPool::remove))
      .def("allocate", function_of(&KvPool::allocate))
      .def("release", function_of(&KvPool::release))
      .def("complete", function_of(&KvPool::complete))
      .def("fail", function_of(&KvPool::fail))
      .def("tickets", function_of(&KvPool::tickets))
      .def("join", function_of(&KvPool::join))
      .def("clear", function_of(&KvPool::clear))
      .def("copy_blocks",
           [](KvPool& a, const Numbers& numbers, const Numbers& rows, std::uintptr_t data,
              std::uint64_t count, std::uint64_t bytes, std::uint64_t stride, std::uint64_t offset,
              bool to_pool, nb::handle device) {
             const Device where = device_arg(device, "array");
             const Stream now = where == kCpu ? Stream{} : torch::current_stream(where);
             const store::KvRows array{
                 reinterpret_cast<std::byte*>(data), count, bytes, stride, where, now};
             without_gil([&] { a.copy_blocks(numbers, rows, array, offset, to_pool); });
           })
      .def("offset", &KvPool::offset);
}

}  // namespace

void add_kv_pool(nb::module_& m, nb::class_<store::Store>& all) {
  nb::class_<KvPool> pool(m, "_StoreKvPool");
  add_blocks(pool);
  pool.def(
          "events", [](const KvPool& a, std::uint64_t since) { return events_of(a.events(since)); },
          nb::sig("def events(self, since: int) -> tuple[int, bool, list[tuple[bool, bytes]]]"))
      .def(
          "stats", [](KvPool& a) { return stats_of(without_gil([&] { return a.stats(); })); },
          nb::sig("def stats(self) -> dict[str, int]"))
      .def(
          "memory",
          [](const KvPool& a, nb::handle framework) {
            const Framework none = torch::is_loaded() ? Framework::torch : Framework::onecopy;
            return open_as(a.memory(), framework_arg(framework, "framework", none));
          },
          nb::arg("framework").none(), nb::sig("def memory(self, framework: str | None) -> typing.Any"));
  // NOLINTNEXTLINE(readability-function-size): the arguments of the function in Python
  all.def("kv_pool", [](store::Store& s, const std::string& name, std::uint64_t block_bytes,
                        std::uint64_t budget, const std::string& space, std::uint32_t parts,
                        std::uint64_t extent_bytes, std::uint64_t min_bytes, std::uint64_t max_bytes,
                        nb::handle device, bool pin, bool outlives_keeper) {
    const Device where = device_arg(device, "device");
    if (pin) watch_captures();
    const store::KvPoolOptions options{block_bytes, budget,    space, parts, extent_bytes,
                                       min_bytes,   max_bytes, where, pin,   outlives_keeper};
    return without_gil([&] { return s.kv_pool(name, options); });
  });
}

}  // namespace onecopy::python
