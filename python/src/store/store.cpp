// SPDX-License-Identifier: Apache-2.0
#include "onecopy/store/store.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <unordered_map>

#include "binding/args.h"
#include "binding/gil.h"
#include "binding/no_collection.h"
#include "binding/open.h"
#include "binding/pin.h"
#include "core/throw_error.h"
#include "store/format/tied_tensors.h"
#include "store/incoming.h"
#include "store/parts.h"

namespace onecopy::python {
namespace {

nb::list names_of(const store::Contents& contents) {
  nb::list names;
  for (std::size_t row = 0; row < contents.size(); ++row)
    names.append(nb::str(contents.name(row).data(), contents.name(row).size()));
  return names;
}

nb::list torch_tensors(const store::Contents& contents) {
  std::vector<torch::View> views;
  for (std::size_t row = 0; row < contents.size(); ++row)
    views.push_back({contents.layout(row), contents.offset(row)});
  const NoCollection no_collection(views.size());
  nb::list tensors;
  for (const nb::object& one : torch::views_of(contents.memory(), views)) tensors.append(one);
  return tensors;
}

/// Returns all tensors, in order.
nb::list tensors_of(const store::Contents& contents, nb::handle framework) {
  const Framework as =
      framework_arg(framework, "framework", torch::is_loaded() ? Framework::torch : Framework::onecopy);
  if (as == Framework::torch) return torch_tensors(contents);
  const NoCollection no_collection(contents.size());
  nb::list tensors;
  for (std::size_t row = 0; row < contents.size(); ++row) tensors.append(open_as(contents.tensor(row), as));
  return tensors;
}

std::vector<Incoming> incoming(const std::vector<std::string>& names, const nb::list& tensors) {
  std::vector<Incoming> all;
  all.reserve(names.size());
  for (std::size_t i = 0; i < names.size(); ++i)
    all.emplace_back(nb::object(tensors[i]), "\"" + names[i] + "\"");
  return all;
}

/// Returns the device of all tensors, or the CPU if its memory would end with this process. Throws invalid_argument if there are several.
Device common_device(const std::vector<std::string>& names, const std::vector<Incoming>& tensors) {
  for (std::size_t i = 1; i < tensors.size(); ++i)
    if (tensors[i].device() != tensors[0].device())
      throw_error(ErrorCode::invalid_argument,
                  "\"{}\" is on {} and \"{}\" on {}; say with device= where the version is to lie",
                  names[0], tensors[0].device().str(), names[i], tensors[i].device().str());
  return tensors.empty() || !store::outlives_its_maker(tensors[0].device()) ? kCpu : tensors[0].device();
}

store::Draft new_draft(store::Store& store, const std::string& name, const std::vector<std::string>& names,
                       const std::vector<Incoming>& from, nb::handle device,
                       const store::PublishOptions& options) {
  std::vector<store::TensorSpec> specs;
  store::TiedTensors tied;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto [at, layout] = from[i].memory();
    specs.push_back({names[i], from[i].layout(), at ? tied.first(at, layout, i) : std::nullopt});
  }
  const Device where = device.is_none() ? common_device(names, from) : device_arg(device, "device");
  return without_gil([&] { return store.draft(name, specs, where, options); });
}

std::vector<Tensor> tensors_in(const store::Contents& contents) {
  std::vector<Tensor> tensors;
  for (std::size_t row = 0; row < contents.size(); ++row) tensors.push_back(contents.tensor(row));
  return tensors;
}

std::uint64_t publish_as_it_is(store::Store& store, const std::string& name,
                               const std::vector<std::string>& names, const nb::list& tensors,
                               const store::PublishOptions& options) {
  std::vector<NamedTensor> all;
  all.reserve(names.size());
  std::unordered_map<PyObject*, std::size_t> seen;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto [same, is_new] = seen.try_emplace(nb::handle(tensors[i]).ptr(), i);
    all.emplace_back(names[i], is_new ? as_it_is(tensors[i], "\"" + names[i] + "\"", options.copies)
                                      : all[same->second].second);
  }
  return without_gil([&] { return store.publish(name, all, options); });
}

// NOLINTNEXTLINE(readability-function-size): the arguments of the function in Python
std::uint64_t publish(store::Store& store, const std::string& name, const std::vector<std::string>& names,
                      const nb::list& tensors, nb::handle device, std::uint32_t keep,
                      const store::Texts& key, const store::Texts& attributes, bool checksums,
                      bool is_as_is, bool copies, const store::Transaction* transaction,
                      const nb::dict& bytes, nb::handle everywhere, nb::handle timeout) {
  const auto beside = content_of(bytes);
  if (is_as_is)
    return publish_as_it_is(store, name, names, tensors,
                            {keep, key, attributes, beside, checksums, store::Placement::as_is, copies});
  const auto from = incoming(names, tensors);
  store::Draft draft =
      new_draft(store, name, names, from, device, {keep, key, attributes, beside, checksums});
  if (transaction) transaction->add(draft);
  copy_all(from, tensors_in(draft));
  if (everywhere.is_none()) return without_gil([&] { return draft.publish(); });
  const store::Everywhere hosts = everywhere_arg(everywhere, timeout);
  return without_gil([&] { return store::Group(store).publish(std::move(draft), hosts); });
}

nb::list list(store::Store& store) {
  nb::list objects;
  for (const store::ObjectInfo& object : without_gil([&] { return store.list(); })) {
    nb::list versions;
    for (const store::VersionInfo& v : object.versions) {
      nb::dict version;
      version["version"] = v.number;
      version["bytes"] = v.bytes;
      version["device"] = v.device;
      version["readers"] = v.readers;
      version["unkept"] = v.unkept;
      version["publisher"] = v.publisher;
      version["awaited"] = v.is_awaited;
      version["made_at"] = static_cast<double>(v.made_at) * 1e-9;
      versions.append(version);
    }
    nb::dict entry;
    entry["name"] = nb::str(object.name.data(), object.name.size());
    entry["current"] = object.current;
    entry["is_kv_pool"] = object.is_kv_pool;
    entry["versions"] = versions;
    objects.append(entry);
  }
  return objects;
}

store::Store connect(const std::string& command, bool autostart) {
  return without_gil([&] { return store::Store::connect({autostart, command}); });
}

std::uint64_t prepare(store::Follower& follower, nb::handle timeout, std::optional<std::uint64_t> to) {
  const auto left = deadline_of(timeout).left(std::chrono::hours(24 * 365));
  return without_gil([&] { return follower.prepare(left, to); });
}

std::uint64_t update(store::Follower& follower, nb::handle timeout, std::optional<std::uint64_t> to) {
  const auto left = deadline_of(timeout).left(std::chrono::hours(24 * 365));
  if (follower.device() != kCpu) watch_captures();
  return without_gil([&] { return follower.update(left, to); });
}

nb::object next_version(store::Watch& watch, nb::handle timeout) {
  const auto number =
      wait_until(deadline_of(timeout), [&](std::chrono::nanoseconds slice) { return watch.next(slice); });
  return number ? nb::cast(*number) : nb::none();
}

template <class Class>
void add_contents(Class& c) {
  using Contents = typename Class::Type;
  c.def(
       "names", [](const Contents& contents) { return names_of(contents); },
       nb::sig("def names(self) -> list[str]"))
      .def(
          "tensors",
          [](const Contents& contents, nb::handle framework) { return tensors_of(contents, framework); },
          nb::arg("framework").none(),
          nb::sig("def tensors(self, framework: str | None) -> list[typing.Any]"));
}

void add_version(nb::module_& m) {
  nb::class_<store::Version> version(m, "_StoreVersion");
  add_contents(version);
  version.def_prop_ro("number", &store::Version::number)
      .def_prop_ro("key", [](const store::Version& v) { return v.key(); })
      .def_prop_ro("attributes", [](const store::Version& v) { return v.attributes(); })
      .def("verify", [](const store::Version& v) { without_gil([&] { v.verify(); }); });
  add_bytes(version);
  nb::class_<store::Follower, store::Version>(m, "_StoreFollower")
      .def("prepare", &prepare, nb::arg("timeout").none(), nb::arg("to").none(),
           nb::sig("def prepare(self, timeout: float | None, to: int | None) -> int"))
      .def("update", &update, nb::arg("timeout").none(), nb::arg("to").none(),
           nb::sig("def update(self, timeout: float | None, to: int | None) -> int"));
  nb::class_<store::Draft> draft(m, "_StoreDraft");
  add_contents(draft);
  add_draft(draft);
  nb::class_<store::Watch>(m, "_StoreWatch")
      .def("next", &next_version, nb::arg("timeout").none(),
           nb::sig("def next(self, timeout: float | None) -> int | None"));
}

}  // namespace

/// Adds the classes behind onecopy.store.
void init_store(nb::module_& m) {
  using store::Store;
  add_version(m);
  add_pull(m);
  nb::class_<Store> all(m, "_Store");
  add_transactions(m, all);
  add_kv_pool(m, all);
  add_group(all);
  all.def("publish", &publish, nb::arg("name"), nb::arg("names"), nb::arg("tensors"),
          nb::arg("device").none(), nb::arg("keep"), nb::arg("key"), nb::arg("attributes"),
          nb::arg("checksums"), nb::arg("is_as_is"), nb::arg("copies"), nb::arg("transaction").none(),
          nb::arg("bytes"), nb::arg("everywhere").none(), nb::arg("timeout").none())
      .def("draft", [](Store& s, const std::string& name,
                       std::uint32_t keep) { return without_gil([&] { return s.draft(name, keep); }); })
      .def(
          "open",
          [](Store& s, const std::string& name, std::optional<std::uint64_t> number,
             const store::Texts& key) { return without_gil([&] { return s.open(name, number, key); }); },
          nb::arg("name"), nb::arg("number").none(), nb::arg("key"))
      .def("follow",
           [](Store& s, const std::string& name, const store::Texts& key) {
             return without_gil([&] { return s.follow(name, key); });
           })
      .def("watch", &Store::watch)
      .def("list", &list, nb::sig("def list(self) -> list[dict[str, typing.Any]]"))
      .def("rollback", [](Store& s, const std::string& name,
                          std::uint64_t number) { without_gil([&] { s.rollback(name, number); }); })
      .def("remove", [](Store& s, const std::string& name,
                        std::uint32_t keep) { without_gil([&] { s.remove(name, keep); }); })
      .def(
          "keeper",
          [](Store& s) {
            const auto keeper = without_gil([&] { return s.keeper(); });
            nb::dict pids;
            pids["worker"] = keeper.worker;
            pids["guard"] = keeper.guard;
            return pids;
          },
          nb::sig("def keeper(self) -> dict[str, int]"));
  m.def("_store_connect", &connect);
}

}  // namespace onecopy::python
