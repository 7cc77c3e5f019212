// SPDX-License-Identifier: Apache-2.0
#include "store/parts.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <vector>

#include "binding/args.h"
#include "binding/gil.h"
#include "binding/open.h"
#include "binding/pin.h"

namespace onecopy::python {
namespace {

using store::KvPool;
using Numbers = std::vector<std::uint32_t>;
using Keys = std::vector<nb::bytes>;

std::string key_of(const nb::bytes& key) { return {key.c_str(), key.size()}; }

std::vector<std::string> keys_of(const Keys& keys) {
  std::vector<std::string> texts;
  texts.reserve(keys.size());
  for (const nb::bytes& key : keys) texts.push_back(key_of(key));
  return texts;
}

nb::dict stats_of(const store::KvPoolStats& stats) {
  nb::dict all;
  const auto add = [&](const char* name, std::uint64_t value) { all[name] = value; };
  add("blocks", stats.blocks);
  add("free", stats.free);
  add("idle", stats.idle);
  add("leased", stats.leased);
  add("writing", stats.writing);
  add("users", stats.users);
  add("hits", stats.hits);
  add("misses", stats.misses);
  add("stored", stats.stored);
  add("evictions", stats.evictions);
  add("evicted_age_ms", stats.evicted_age_ms);
  add("free_bytes", stats.free_bytes);
  add("timeouts", stats.timeouts);
  add("recoveries", stats.recoveries);
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
  for (const store::KvPresence one : pool.contains(keys_of(keys)))
    all.push_back(one == store::KvPresence::writing ? std::nullopt
                                                    : std::optional(one == store::KvPresence::whole));
  return all;
}

void add_keys(nb::class_<KvPool>& pool) {
  pool.def("put",
           [](KvPool& a, const nb::bytes& key, std::uint32_t number) {
             const std::string text = key_of(key);
             return without_gil([&] { return a.put(text, number); });
           })
      .def("write",
           [](KvPool& a, const Keys& keys, std::uint32_t group) {
             const auto texts = keys_of(keys);
             return without_gil([&] { return a.write(texts, group); });
           })
      .def("find",
           [](KvPool& a, const Keys& keys) {
             const auto texts = keys_of(keys);
             return without_gil([&] { return a.find(texts); });
           })
      .def("find_all",
           [](KvPool& a, const Keys& keys) {
             const auto texts = keys_of(keys);
             return without_gil([&] { return a.find_all(texts); });
           })
      .def("contains", &presence_of)
      .def("pin",
           [](KvPool& a, const Keys& keys, std::uint32_t seconds) {
             const auto texts = keys_of(keys);
             return without_gil([&] { return a.pin(texts, seconds); });
           })
      .def("remove", [](KvPool& a, const nb::bytes& key) {
        const std::string text = key_of(key);
        return without_gil([&] { return a.remove(text); });
      });
}

void add_blocks(nb::class_<KvPool>& pool) {
  pool.def("allocate",
           [](KvPool& a, std::uint32_t count) { return without_gil([&] { return a.allocate(count); }); })
      .def("release", [](KvPool& a, const Numbers& numbers) { without_gil([&] { a.release(numbers); }); })
      .def("complete", [](KvPool& a, const Numbers& numbers,
                          std::uint32_t part) { without_gil([&] { a.complete(numbers, part); }); })
      .def("fail", [](KvPool& a, const Numbers& numbers) { without_gil([&] { a.fail(numbers); }); })
      .def("tickets", [](KvPool& a, const Numbers& numbers) { return a.tickets(numbers); })
      .def("join",
           [](KvPool& a, const std::vector<std::uint64_t>& tickets) {
             return without_gil([&] { return a.join(tickets); });
           })
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
  add_keys(pool);
  add_blocks(pool);
  pool.def("clear", [](KvPool& a) { return without_gil([&] { return a.clear(); }); })
      .def(
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
