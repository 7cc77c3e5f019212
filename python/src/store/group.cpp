// SPDX-License-Identifier: Apache-2.0
#include "store/parts.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "binding/gil.h"
#include "onecopy/store/group.h"

namespace onecopy::python {
namespace {

using store::Group;
using store::Store;

nb::list hosts(Store& store, const std::string& name) {
  nb::list all;
  for (const store::GroupHost& host : without_gil([&] { return Group(store).hosts(name); })) {
    nb::dict one;
    one["host"] = host.name;
    one["address"] = host.address;
    one["is_member"] = host.is_member;
    one["is_present"] = host.is_present;
    one["version"] = host.version == 0 ? nb::object(nb::none()) : nb::cast(host.version);
    one["is_current"] = host.is_current;
    one["bytes"] = host.bytes;
    one["problem"] = host.problem;
    all.append(one);
  }
  return all;
}

std::optional<double> age(Store& store) {
  const auto age = without_gil([&] { return Group(store).age(); });
  return age ? std::optional(std::chrono::duration<double>(*age).count()) : std::nullopt;
}

}  // namespace

store::Everywhere everywhere_arg(nb::handle hosts, nb::handle timeout) {
  return {nb::cast<std::size_t>(hosts), deadline_of(timeout).left(std::chrono::hours(24 * 365))};
}

void add_group(nb::class_<Store>& all) {
  all.def("is_of_group",
          [](Store& s, const std::string& name) { return without_gil([&] { return Group(s).has(name); }); })
      .def("group_rollback",
           [](Store& s, const std::string& name, std::uint64_t number) {
             without_gil([&] { Group(s).rollback(name, number); });
           })
      .def("group_remove",
           [](Store& s, const std::string& name) { without_gil([&] { Group(s).remove(name); }); })
      .def("hosts", &hosts, nb::sig("def hosts(self, name: str) -> list[dict[str, typing.Any]]"))
      .def("age", &age)
      .def("group_problem", [](Store& s) { return without_gil([&] { return Group(s).problem(); }); })
      .def("leave", [](Store& s, const std::string& host) { without_gil([&] { Group(s).leave(host); }); })
      .def("stop", [](Store& s) { without_gil([&] { Group(s).stop(); }); });
}

}  // namespace onecopy::python
