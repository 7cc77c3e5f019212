// SPDX-License-Identifier: Apache-2.0
#include "store/parts.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <vector>

#include "binding/args.h"
#include "binding/gil.h"
#include "onecopy/store/transaction.h"

namespace onecopy::python {
namespace {

/// Makes a draft with a layout, which is three lists of the same length.
// NOLINTNEXTLINE(readability-function-size): the arguments of the function in Python
store::Draft draft_with(store::Store& store, const std::string& name, const std::vector<std::string>& names,
                        const nb::list& shapes, const nb::list& dtypes, nb::handle device,
                        std::uint32_t keep, const store::Texts& key, const store::Texts& attributes,
                        bool checksums) {
  std::vector<store::TensorSpec> specs;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const std::string what = "the layout of \"" + names[i] + "\"";
    specs.push_back(
        {names[i], Layout(dtype_arg(dtypes[i], what.c_str()), shape_arg(shapes[i], what.c_str()))});
  }
  const Device where = device_arg(device, "device");
  const store::PublishOptions options{keep, key, attributes, {}, checksums};
  return without_gil([&] { return store.draft(name, specs, where, options); });
}

nb::bytes bytes_of(const store::Version& version, const std::string& name) {
  const auto content = version.bytes(name);
  if (!content) throw nb::key_error(name.c_str());
  return nb::bytes(content->data(), content->size());
}

}  // namespace

std::map<std::string, std::string> content_of(const nb::dict& bytes) {
  std::map<std::string, std::string> all;
  for (const auto& [name, content] : bytes) {
    const auto one = nb::cast<nb::bytes>(content);
    all.emplace(nb::cast<std::string>(name), std::string(one.c_str(), one.size()));
  }
  return all;
}

void add_bytes(nb::class_<store::Version>& version) {
  version.def("names_of_bytes", &store::Version::names_of_bytes)
      .def("bytes", &bytes_of)
      .def("descriptor",
           [](const store::Version& v) { return without_gil([&] { return v.descriptor(); }); });
}

void add_draft(nb::class_<store::Draft>& draft) {
  using store::Draft;
  draft.def("publish", [](Draft& d) { return without_gil([&] { return d.publish(); }); })
      .def("set_bytes",
           [](Draft& d, const std::string& name, const nb::bytes& content) {
             d.set_bytes(name, {content.c_str(), content.size()});
           })
      .def("handle", [](Draft& d) { return without_gil([&] { return d.handle(); }); })
      .def("done", [](Draft& d) { without_gil([&] { d.done(); }); })
      .def("abort", [](Draft& d) { without_gil([&] { d.abort(); }); });
}

void add_transactions(nb::module_& m, nb::class_<store::Store>& all) {
  using store::Store;
  using store::Transaction;
  nb::class_<Transaction>(m, "_StoreTransaction")
      .def("handle", &Transaction::handle)
      .def("add", &Transaction::add)
      .def("commit", [](Transaction& t) { return without_gil([&] { return t.commit(); }); })
      .def("leave", [](Transaction& t) { without_gil([&] { t.leave(); }); })
      .def("abort", [](Transaction& t) { without_gil([&] { t.abort(); }); });
  all.def("draft_with", &draft_with, nb::arg("name"), nb::arg("names"), nb::arg("shapes"),
          nb::arg("dtypes"), nb::arg("device"), nb::arg("keep"), nb::arg("key"), nb::arg("attributes"),
          nb::arg("checksums"))
      .def("join_draft",
           [](Store& s, const std::string& handle) {
             return without_gil([&] { return s.join_draft(handle); });
           })
      .def("transaction", [](Store& s) { return without_gil([&] { return s.transaction(); }); })
      .def("join",
           [](Store& s, const std::string& handle) { return without_gil([&] { return s.join(handle); }); });
}

}  // namespace onecopy::python
