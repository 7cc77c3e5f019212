// SPDX-License-Identifier: Apache-2.0
#include "binding/bundle.h"

#include <fmt/format.h>
#include <nanobind/stl/string.h>

#include "binding/device.h"
#include "binding/gil.h"
#include "binding/no_collection.h"
#include "binding/open.h"
#include "binding/pin.h"
#include "onecopy/core/error.h"
#include "onecopy/share/share.h"
#include "value/values.h"

namespace onecopy::python {
namespace {

constexpr std::size_t kMaxNamed = 4;  // names that repr() shows

nb::object to_str(std::string_view text) {
  return owned(PyUnicode_FromStringAndSize(text.data(), static_cast<Py_ssize_t>(text.size())));
}

// ---- what Python calls

/// Returns the row with this name. Empty if there is none, or if `key` is not a str.
std::optional<std::size_t> find_row(const OpenBundle& bundle, nb::handle key) {
  const auto name = utf8_of(key);
  return name ? bundle.find(*name) : std::nullopt;
}

std::size_t row_of(const OpenBundle& bundle, nb::handle key) {
  if (nb::isinstance<nb::str>(key)) {
    if (const auto row = find_row(bundle, key)) return *row;
    raise(nb::module_::import_("onecopy.errors")
              .attr("MissingName")(key, nb::find(bundle), bundle.is_tree()));
  }
  if (!PyIndex_Check(key.ptr()))
    raise_type_error(
        fmt::format("key must be the name or the row number of a tensor, not {}", short_repr(key)));
  Py_ssize_t row = PyNumber_AsSsize_t(key.ptr(), PyExc_IndexError);
  if (row == -1 && PyErr_Occurred()) throw nb::python_error();
  const auto size = static_cast<Py_ssize_t>(bundle.size());
  if (row < -size || row >= size)
    throw nb::index_error(fmt::format("key: there is no row {} in a bundle of {}", row, size).c_str());
  return static_cast<std::size_t>(row < 0 ? row + size : row);
}

bool contains(const OpenBundle& bundle, nb::handle key) { return find_row(bundle, key).has_value(); }

nb::object get_item(const OpenBundle& bundle, nb::handle key) {
  return bundle.array(row_of(bundle, key), bundle.framework());
}

nb::object get(const OpenBundle& bundle, nb::handle key, nb::handle otherwise) {
  return contains(bundle, key) ? get_item(bundle, key) : nb::borrow(otherwise);
}

nb::list keys(const OpenBundle& bundle) {
  nb::list names;
  for (std::size_t row = 0; row < bundle.size(); ++row) names.append(bundle.name(row));
  return names;
}

nb::list values_as(const OpenBundle& bundle, Framework framework) {
  return list_of(bundle.arrays(framework));
}

nb::list values(const OpenBundle& bundle) { return values_as(bundle, bundle.framework()); }

nb::object load_into(nb::handle bundle, nb::handle module, nb::handle prefix, bool strict) {
  const nb::object load = nb::module_::import_("onecopy.torch._load_into").attr("load_into");
  return call_python([&] { return load(bundle, module, text_of(prefix, "prefix"), strict); });
}

[[noreturn]] void refuse_pickle(nb::handle, nb::handle) {
  raise_type_error(
      "a Bundle cannot be pickled: send bundle.handle to another process, or save dict(bundle) or "
      "bundle.tree()");
}

nb::list items(const OpenBundle& bundle) {
  nb::list pairs;
  std::size_t row = 0;
  for (const nb::object& array : bundle.arrays(bundle.framework()))
    pairs.append(nb::make_tuple(bundle.name(row++), array));
  return pairs;
}

nb::object iterate(const OpenBundle& bundle) { return nb::iter(keys(bundle)); }

std::string to_text(const OpenBundle& bundle) {
  std::string text = fmt::format("<onecopy.Bundle of {}", bundle.size());
  for (std::size_t row = 0; row < bundle.size() && row < kMaxNamed; ++row)
    text += fmt::format("{} {} {}", row == 0 ? ":" : ",", nb::repr(bundle.name(row)).c_str(),
                        bundle.layout(row).str());
  if (bundle.size() > kMaxNamed) text += ", ...";
  return text + ">";
}

}  // namespace

OpenBundle::OpenBundle(const Handle& handle, Access access, Framework framework,
                       std::optional<Device> device)
    : handle_(handle),
      bundle_(without_gil([&] {
        return Bundle::open(handle, OpenOptions{access, device, Stream{}});
      })),
      framework_(framework),
      value_(BundleValue::decode(bundle_.structure(), bundle_.size())) {}

/// Pins each row on the CPU. Pinning a row pins its neighbours too, so most rows cost only a look-up.
void OpenBundle::pin() const {
  for (const Tensor& tensor : open_rows(size()))
    if (is_on_host(tensor)) pin_here(tensor);
}

nb::object OpenBundle::name(std::size_t row) const { return to_str(bundle_.name(row)); }

nb::object OpenBundle::array(std::size_t row, Framework framework) const {
  Tensor tensor = without_gil([&] { return bundle_.tensor(row); });
  receive({&tensor, 1});
  return open_as(tensor, framework, flags(row));
}

std::vector<nb::object> OpenBundle::arrays(Framework framework) const {
  const std::vector<Tensor> tensors = open_rows(size());
  const NoCollection no_collection(tensors.size());
  std::vector<nb::object> arrays;
  arrays.reserve(tensors.size());
  for (std::size_t row = 0; row < tensors.size(); ++row)
    arrays.push_back(open_as(tensors[row], framework, flags(row)));
  return arrays;
}

nb::object OpenBundle::tree(Framework framework) const {
  if (!is_tree()) {
    nb::dict all;
    std::size_t row = 0;
    for (const nb::object& array : arrays(framework)) all[name(row++)] = array;
    return all;
  }
  const std::vector<Tensor> tensors = open_rows(value_.tensors);
  const NoCollection no_collection(tensors.size());
  return decode_value(value_.value, tensors, [=](const Tensor& tensor, std::uint32_t flags) {
    return open_as(tensor, framework, flags);
  });
}

/// Opens all rows in one call without the GIL, since the first row may have to wait for its owner.
std::vector<Tensor> OpenBundle::open_rows(std::size_t count) const {
  std::vector<Tensor> tensors = without_gil([&] { return bundle_.tensors(count); });
  receive(tensors);
  return tensors;
}

/// Reads the flags from the value, without opening a tensor.
std::uint32_t OpenBundle::flags(std::size_t row) const {
  if (!is_tree()) return 0;
  if (flags_.empty()) {
    std::vector<std::uint32_t> found;
    decode_value(value_.value, std::vector<Tensor>(value_.tensors), [&](const Tensor&, std::uint32_t f) {
      found.push_back(f);
      return nb::none();
    });
    flags_ = std::move(found);
  }
  return flags_[value_.original(row)];
}

// NOLINTNEXTLINE(readability-function-size): a list of definitions with their docstrings
void init_bundle(nb::module_& m) {
  nb::class_<OpenBundle> c(
      m, "Bundle", nb::is_final(), nb::is_weak_referenceable(),
      nb::sig("class Bundle(collections.abc.Mapping[str, typing.Any])"),
      "A mapping from names to the tensors of one handle. Made by ``open()``.\n"
      "\n"
      "A tensor is opened when it is accessed. A tensor of a nested value is named by its place in\n"
      "the value, e.g. ``\"layers.3.weight\"``. ``tree()`` returns the whole nested value, including\n"
      "values that are not tensors. For ``load_state_dict()``, which accepts only torch tensors, open\n"
      "the bundle with ``framework=\"torch\"``.");
  c.attr("__reversed__") = nb::none();  // rows also have numbers, so Python would reverse it as a sequence
  c.def("__len__", &OpenBundle::size)
      .def("__contains__", &contains, nb::arg("name").none(),
           nb::sig("def __contains__(self, name: object) -> bool"))
      .def("__iter__", &iterate, nb::sig("def __iter__(self) -> typing.Iterator[str]"))
      .def("__getitem__", &get_item, nb::arg("key").none(),
           nb::sig("def __getitem__(self, key: str | int) -> typing.Any"),
           "Opens the tensor with this name or row number, in the framework of the bundle.\n"
           "\n"
           "Raises:\n"
           "    KeyError, IndexError: there is no such tensor; the message suggests similar names.\n"
           "    StaleHandle, OwnerDied: as ``open()``.")
      .def("get", &get, nb::arg("key").none(), nb::arg("default") = nb::none(),
           nb::sig("def get(self, key: str, default: typing.Any = None) -> typing.Any"),
           "Opens the tensor with this name, or returns ``default``.")
      .def("keys", &keys, nb::sig("def keys(self) -> list[str]"), "Returns the names, in order.")
      .def("values", &values, nb::sig("def values(self) -> list[typing.Any]"),
           "Opens all tensors at once and returns them.")
      .def("items", &items, nb::sig("def items(self) -> list[tuple[str, typing.Any]]"),
           "Opens all tensors at once and returns pairs of names and tensors.")
      .def(
          "tree",
          [](const OpenBundle& bundle, nb::handle framework) {
            return bundle.tree(framework_arg(framework, "framework", bundle.framework()));
          },
          nb::arg("framework") = nb::none(),
          nb::sig("def tree(self, framework: typing.Literal['onecopy', 'torch', 'numpy'] | None = None) -> "
                  "typing.Any"),
          "Opens all tensors at once and returns the nested value that was shared.\n"
          "\n"
          "An object that was at several places is one object again. Parameters of torch stay\n"
          "Parameters, and tensors keep ``requires_grad``. Subclasses of dict, list and tuple become\n"
          "dict, list and tuple. A bundle that another language made becomes a dict.\n"
          "\n"
          "Args:\n"
          "    framework: the library of the tensors; None for the bundle's framework.")
      .def("load_into", &load_into, nb::arg("module").none(), nb::kw_only(), nb::arg("prefix").none() = "",
           nb::arg("strict") = true,
           nb::sig("def load_into(self, module: typing.Any, *, prefix: str = '', strict: bool = True) -> "
                   "typing.Any"),
           "Makes the parameters and buffers of a ``torch.nn.Module`` use the bundle's memory, without a\n"
           "copy.\n"
           "\n"
           "Unlike ``load_state_dict(assign=True)`` it also loads non-persistent buffers, which\n"
           "``share(model)`` includes, so that a module made on ``meta`` becomes complete. Tied tensors\n"
           "stay one object. A parameter keeps the module's ``requires_grad`` and takes the bundle's\n"
           "dtype. Hooks of ``load_state_dict()`` are not called.\n"
           "\n"
           "Args:\n"
           "    module: a module with the same names, on ``meta`` or with values to replace.\n"
           "    prefix: the module's place in the shared value: \"model\" for share({\"model\": ...}).\n"
           "    strict: raise if the module or the bundle lacks a name of the other. A non-persistent\n"
           "        buffer that is not on ``meta`` may be missing, and keeps its value.\n"
           "\n"
           "Returns:\n"
           "    The names that were not loaded, as ``missing`` and ``unexpected``.\n"
           "\n"
           "Raises:\n"
           "    InvalidArgument: names or shapes differ; the module is unchanged.\n"
           "    StaleHandle, OwnerDied: as ``open()``.")
      .def(
          "_values",
          [](const OpenBundle& bundle, nb::handle framework) {
            return values_as(bundle, framework_arg(framework, "framework"));
          },
          nb::arg("framework"), nb::sig("def _values(self, framework: str) -> list[typing.Any]"))
      .def("__reduce_ex__", &refuse_pickle, nb::arg("protocol"),
           nb::sig("def __reduce_ex__(self, protocol: typing.SupportsIndex) -> typing.NoReturn"))
      .def_prop_ro(
          "handle", [](const OpenBundle& bundle) { return bundle.handle(); },
          nb::sig("def handle(self) -> Handle"), "The handle that the bundle was opened with.")
      .def("__repr__", &to_text);
}

}  // namespace onecopy::python
