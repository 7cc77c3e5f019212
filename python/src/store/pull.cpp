// SPDX-License-Identifier: Apache-2.0
#include "store/parts.h"

#include <fmt/format.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "binding/gil.h"
#include "os/log.h"
#include "store/ferry/host_key.h"
#include "store/ferry/pull.h"

namespace onecopy::python {
namespace {

using namespace std::chrono_literals;
using store::ferry::Pull;

void init(Pull* self, const std::vector<std::string>& addresses, const std::string& name,
          std::uint64_t number, const std::string& command) {
  without_gil([&] {
    store::ferry::PullOptions options;
    for (const std::string& address : addresses) options.sources.emplace_back(address);
    options.name = name;
    options.number = number;
    options.keys = store::ferry::store_keys();
    options.keeper = {true, command};
    options.between_chunks = &handle_signals;
    new (self) Pull(std::move(options));
  });
}

Pull::Retries retries(bool follows, std::chrono::nanoseconds max_away) {
  return {follows, max_away,
          [](const Error& error) { log_warning(fmt::format("{}; trying again", error.what())); }};
}

/// Returns the number of the version that is current afterwards.
std::uint64_t pull_once(Pull& pull, nb::handle timeout) {
  const auto max_away = deadline_of(timeout).left();
  return without_gil([&] {
    const auto pulled = pull.next(0ms, retries(false, max_away));
    return pulled ? pulled->number : pull.current();
  });
}

/// Waits until another version has become current here, and returns its number.
std::uint64_t next(Pull& pull) {
  constexpr std::chrono::nanoseconds kMaxWait{5s};  // after that a connection without an answer is noticed
  const auto attempt = [&](std::chrono::nanoseconds slice) {
    const auto wait = std::chrono::ceil<std::chrono::milliseconds>(std::min(slice, kMaxWait));
    return pull.next(wait, retries(true, std::chrono::nanoseconds::max()));
  };
  return wait_until(kForever, attempt)->number;
}

}  // namespace

void add_pull(nb::module_& m) {
  nb::class_<Pull>(m, "_StorePull")
      .def("__init__", &init, nb::arg("addresses"), nb::arg("name"), nb::arg("number"), nb::arg("command"))
      .def("once", &pull_once, nb::arg("timeout").none(),
           nb::sig("def once(self, timeout: float | None) -> int"))
      .def("next", &next);
}

}  // namespace onecopy::python
