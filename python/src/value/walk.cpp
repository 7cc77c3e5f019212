// SPDX-License-Identifier: Apache-2.0
#include "value/walk.h"

#include <fmt/format.h>
#include <nanobind/stl/string.h>

#include <utility>

#include "binding/args.h"
#include "core/throw_error.h"
#include "torch/torch.h"
#include "value/leaf.h"
#include "value/tags.h"

namespace onecopy::python {

std::string Path::name() const {
  std::string name;
  for (const Item& step : steps_) append(name, step);
  return name;
}

void Path::append(std::string& name, const Item& item) const {
  if (is_whole_) return;
  if (!name.empty()) name += '.';
  if (!item.key.is_valid()) {
    name += fmt::format_int(item.index).c_str();
    return;
  }
  if (PyUnicode_CheckExact(item.key.ptr())) name += utf8_of(item.key).value_or("?");
  else name += utf8_of(nb::str(item.key)).value_or("?");
}

std::string Path::place(const Item& item) const {
  std::string at = name();
  append(at, item);
  return at.empty() ? argument_ : fmt::format("{} at \"{}\"", argument_, at);
}

std::string Path::place() const {
  const std::string at = name();
  return at.empty() ? argument_ : fmt::format("{} at \"{}\"", argument_, at);
}

nb::object Visitor::tensors_of(nb::handle, const std::string&) { return nb::none(); }

namespace {

bool is_instance(nb::handle object, const nb::object& type) {
  const int is = PyObject_IsInstance(object.ptr(), type.ptr());
  if (is < 0) throw nb::python_error();
  return is == 1;
}

bool is_module(nb::handle object) {
  return torch::is_loaded() && is_instance(object, nb::module_::import_("torch.nn").attr("Module"));
}

bool is_mapping(nb::handle object) {
  return is_instance(object, nb::module_::import_("collections.abc").attr("Mapping"));
}

bool is_plain_key(nb::handle key) {
  if (!PyTuple_CheckExact(key.ptr())) return plain_of(key).is(key);
  for (const nb::handle part : nb::borrow<nb::tuple>(key))
    if (!is_plain_key(part)) return false;
  return true;
}

nb::object dict_of(nb::handle pairs) {
  nb::dict made;
  if (PyDict_MergeFromSeq2(made.ptr(), pairs.ptr(), 1) < 0) throw nb::python_error();
  return made;
}

/// Returns a list, tuple or named tuple of the type of `like` with these items.
nb::object sequence_like(nb::handle like, const nb::list& items) {
  if (PyList_CheckExact(like.ptr())) return items;
  if (PyTuple_CheckExact(like.ptr())) return nb::tuple(items);
  if (nb::hasattr(like, "_fields")) return like.type()(*items);
  return like.type()(items);
}

}  // namespace

/// A walk, which visits the objects of a container in order: those that follow each other at once, and before the next
/// container in it.
class Walk {
 public:
  Walk(Visitor& visitor, const char* argument) : visitor_(visitor), path_(argument) {}

  nb::object whole(nb::handle value) {
    if (nb::object made = container(value); made.is_valid()) return made;
    Item item{nb::borrow(value), {}, 0};
    visitor_.take({&item, 1}, path_);
    return item.object;
  }

 private:
  /// The copy of a container, a dict or list, and the objects of it that the visitor takes next.
  struct Copy {
    nb::object items;
    std::vector<Item> waiting{};
    bool is_changed = false;
  };

  nb::object container(nb::handle value);
  nb::object mapping(nb::object copy, nb::handle original);
  nb::object sequence(nb::handle original);
  void visit(Copy& copy, nb::handle value, Item at);
  void take_waiting(Copy& copy);
  static void replace(Copy& copy, const Item& at, nb::object object);
  void check_depth(std::size_t depth) const;
  void check_key(nb::handle key) const;
  bool makes(Visitor::Makes what) const noexcept { return visitor_.makes() == what; }

  Visitor& visitor_;
  Path path_;
};

/// Returns what the walk makes of a container, or an invalid object for a value that is none.
nb::object Walk::container(nb::handle value) {
  const bool is_sequence = PyList_Check(value.ptr()) || PyTuple_Check(value.ptr());
  const bool is_dict = PyDict_Check(value.ptr());
  nb::object mapped;
  if (!is_dict && !is_sequence) {
    if (is_tensor(value.ptr())) return {};
    if (is_module(value)) mapped = visitor_.tensors_of(value, path_.place());
    else if (is_mapping(value)) mapped = dict_of(value.attr("items")());
    else return {};
    if (mapped.is_none()) return {};
  }
  check_depth(path_.steps_.size());
  const bool was_whole = std::exchange(path_.is_whole_, false);
  nb::object made = is_sequence ? sequence(value)
                    : is_dict   ? mapping(owned(PyDict_Copy(value.ptr())), value)
                                : mapping(std::move(mapped), nb::handle());
  path_.is_whole_ = was_whole;
  return made;
}

nb::object Walk::mapping(nb::object copied, nb::handle original) {
  Copy copy{std::move(copied)};
  copy.waiting.reserve(static_cast<std::size_t>(NB_DICT_GET_SIZE(copy.items.ptr())));
  PyObject *key, *value;
  for (Py_ssize_t position = 0; PyDict_Next(copy.items.ptr(), &position, &key, &value) != 0;) {
    if (makes(Visitor::Makes::plain_types)) check_key(key);
    visit(copy, value, {{}, key, 0});
  }
  take_waiting(copy);
  const bool is_itself = makes(Visitor::Makes::plain_types) && !copy.is_changed && original.is_valid() &&
                         PyDict_CheckExact(original.ptr());
  return is_itself ? nb::borrow(original) : copy.items;
}

nb::object Walk::sequence(nb::handle original) {
  Copy copy{nb::list(original)};
  const Py_ssize_t size = NB_LIST_GET_SIZE(copy.items.ptr());
  copy.waiting.reserve(static_cast<std::size_t>(size));
  for (Py_ssize_t i = 0; i < size; ++i) visit(copy, NB_LIST_GET_ITEM(copy.items.ptr(), i), {{}, {}, i});
  take_waiting(copy);
  const nb::list items = nb::borrow<nb::list>(copy.items);
  if (makes(Visitor::Makes::same_types)) return sequence_like(original, items);
  const bool is_exact = PyList_CheckExact(original.ptr()) || PyTuple_CheckExact(original.ptr());
  if (is_exact && !copy.is_changed) return nb::borrow(original);
  return PyTuple_Check(original.ptr()) ? nb::object(nb::tuple(items)) : nb::object(items);
}

void Walk::visit(Copy& copy, nb::handle value, Item at) {
  if (!is_tensor(value.ptr())) {
    if (nb::object plain = plain_of(value); plain.is_valid()) {
      if (!plain.is(value) && makes(Visitor::Makes::plain_types)) replace(copy, at, std::move(plain));
      return;
    }
    take_waiting(copy);  // which keeps the order
    const nb::object kept = nb::borrow(value);
    path_.steps_.push_back(at);
    nb::object made = container(value);
    path_.steps_.pop_back();
    if (made.is_valid()) {
      if (!made.is(value)) replace(copy, at, std::move(made));
      return;
    }
  }
  at.object = nb::borrow(value);
  at.given = value.ptr();
  copy.waiting.push_back(std::move(at));
}

void Walk::take_waiting(Copy& copy) {
  if (copy.waiting.empty()) return;
  check_depth(path_.steps_.size() + 1);
  std::vector<Item> items = std::exchange(copy.waiting, {});
  visitor_.take(items, path_);
  for (const Item& item : items)
    if (item.object.ptr() != item.given) replace(copy, item, item.object);
}

void Walk::replace(Copy& copy, const Item& at, nb::object object) {
  copy.is_changed = true;
  if (!at.key.is_valid()) PyList_SetItem(copy.items.ptr(), at.index, object.release().ptr());
  else if (PyDict_SetItem(copy.items.ptr(), at.key.ptr(), object.ptr()) < 0) throw nb::python_error();
}

void Walk::check_depth(std::size_t depth) const {
  if (depth < value::kMaxDepth) return;
  throw_error(ErrorCode::invalid_argument, "{} is nested {} deep or more, or contains itself",
              path_.place(), value::kMaxDepth);
}

void Walk::check_key(nb::handle key) const {
  const auto refuse_key = [&](const char* why) {
    throw_error(ErrorCode::invalid_argument, "{} has the key {}, which is not {}", path_.place(),
                short_repr(key), why);
  };
  if (!is_plain_key(key)) refuse_key("a plain value");
  if (PyUnicode_CheckExact(key.ptr()) ? !utf8_of(key) : !utf8_of(nb::str(key)))
    refuse_key("valid text: it has lone surrogates");
}

nb::object walk(nb::handle value, Visitor& visitor, const char* argument) {
  return Walk(visitor, argument).whole(value);
}

nb::object tensors_of_module(nb::handle module) {
  nb::dict all;
  for (const char* kind : {"named_parameters", "named_buffers"}) {
    const nb::object named = module.attr(kind)(nb::arg("remove_duplicate") = false);
    if (PyDict_MergeFromSeq2(all.ptr(), named.ptr(), 1) < 0) throw nb::python_error();
  }
  return all;
}

}  // namespace onecopy::python
