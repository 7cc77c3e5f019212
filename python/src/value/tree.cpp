// SPDX-License-Identifier: Apache-2.0
#include "value/tree.h"

#include <fmt/format.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <string_view>

#include "array/numpy.h"
#include "array/source.h"
#include "binding/args.h"
#include "binding/device.h"
#include "onecopy/core/error.h"
#include "onecopy/share/share.h"
#include "torch/torch.h"
#include "value/tags.h"
#include "value/values.h"

namespace onecopy::python {
namespace {

/// Returns whether an object is an instance of a class of torch. Does not import the class's module.
bool is_instance_of_torch(nb::handle x, const char* module, const char* name) {
  if (!torch::is_loaded()) return false;
  const int is = PyObject_IsInstance(x.ptr(), nb::module_::import_(module).attr(name).ptr());
  if (is < 0) throw nb::python_error();
  return is == 1;
}

bool is_module(nb::handle x) { return is_instance_of_torch(x, "torch.nn", "Module"); }

std::string attribute_text(nb::handle x, const char* attribute) {
  const nb::object value = x.attr(attribute);
  return nb::str(nb::handle(value)).c_str();
}

[[noreturn]] void refuse_torch(nb::handle x, const std::string& argument) {
  throw Error(ErrorCode::unsupported,
              fmt::format("{} is a torch tensor with layout {}, dtype {} on {}; only dense tensors of the "
                          "cpu and of CUDA and Ascend devices can be shared by handle: share the dense "
                          "tensors that it consists of, or send it through a "
                          "onecopy.multiprocessing.Queue",
                          argument, attribute_text(x, "layout"), attribute_text(x, "dtype"),
                          attribute_text(x, "device")));
}

bool requires_grad(nb::handle x) { return nb::cast<bool>(x.attr("requires_grad")); }

/// Returns a row-major copy of the elements, with the original's properties. REQUIRES: torch::is_tensor(x).
nb::object copy_of_torch(nb::handle x, const std::string& argument) {
  const auto from = torch::TorchTensor::of(x.ptr());
  if (!from) refuse_torch(x, argument);
  const Tensor made = empty_in_order(Layout(from->layout.dtype(), from->layout.shape()), from->device);
  torch::open(made, torch::kTorch).attr("copy_")(x.attr("detach")());
  std::uint32_t flags = torch::kTorch;
  if (is_instance_of_torch(x, "torch.nn", "Parameter")) flags |= torch::kParameter;
  if (requires_grad(x) && nb::cast<bool>(x.attr("is_leaf"))) flags |= torch::kRequiresGrad;
  return torch::open(made, flags);
}

[[noreturn]] void refuse_wrapper(nb::handle x, const std::string& argument) {
  throw Error(
      ErrorCode::unsupported,
      fmt::format("{} is a {}, which has no memory of its own; share the tensors that it is made of, "
                  "such as the to_local() of a DTensor",
                  argument, nb::type_name(x.type()).c_str()));
}

/// Returns a tensor of a subclass as a torch.Tensor. A tensor made of other tensors is returned unchanged, or raises
/// that it cannot be converted.
nb::object elements_of_torch(nb::handle x, bool with_graph, const std::string& argument) {
  nb::object plain;
  try {
    const nb::object from = with_graph ? nb::borrow(x) : nb::object(x.attr("detach")());
    plain = from.attr("as_subclass")(nb::module_::import_("torch").attr("Tensor"));
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_Exception) || error.matches(PyExc_MemoryError)) throw;
  }
  if (!plain.is_valid() || !torch::is_tensor(plain.ptr())) refuse_wrapper(x, argument);
  return plain;
}

/// Returns a torch.Tensor or Parameter on the memory of a tensor of a subclass. Autograd must not record the
/// conversion, since its result would not be a leaf.
nb::object plain_torch(nb::handle x, bool copy, const std::string& argument) {
  if (is_instance_of_torch(x, "torch.nn.parameter", "UninitializedTensorMixin"))
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} has no shape and no memory yet; run the lazy module once first", argument));
  const bool is_leaf = nb::cast<bool>(x.attr("is_leaf"));
  nb::object plain =
      elements_of_torch(x, !is_leaf && !copy, argument);  // torch raises the reason for refusing a graph
  if (!is_leaf) return plain;
  if (is_instance_of_torch(x, "torch.nn", "Parameter"))
    return nb::module_::import_("torch").attr("nn").attr("Parameter")(plain, requires_grad(x));
  if (requires_grad(x)) plain.attr("requires_grad_")();
  return plain;
}

/// Returns shareable_array(). `is_torch` is whether x is exactly a torch tensor.
nb::object shareable(nb::handle x, bool is_torch, bool copy, const std::string& argument) {
  if (is_torch) return copy ? copy_of_torch(x, argument) : nb::borrow(x);
  if (is_instance_of_torch(x, "torch", "Tensor"))
    return shareable(plain_torch(x, copy, argument), true, copy, argument);
  const auto source = Source::of(x, argument.c_str());
  if (!source) return {};
  return copy ? nb::cast(source->copied()) : source->as_tensor();
}

/// Returns the value in the codec's type for it: int for an IntEnum, float for a number of numpy.
nb::object plain_of_other(nb::handle x) {
  PyObject* plain = nullptr;
  if (PyLong_Check(x.ptr())) plain = PyNumber_Long(x.ptr());
  else if (PyFloat_Check(x.ptr())) plain = PyNumber_Float(x.ptr());
  else if (PyUnicode_Check(x.ptr())) plain = PyUnicode_FromObject(x.ptr());
  else if (is_numpy_scalar(x)) return x.attr("item")();
  else return {};
  return owned(plain);
}

bool is_plain(nb::handle x) {
  return x.is_none() || PyBool_Check(x.ptr()) || PyLong_CheckExact(x.ptr()) ||
         PyFloat_CheckExact(x.ptr()) || PyComplex_CheckExact(x.ptr()) || PyUnicode_CheckExact(x.ptr()) ||
         PyBytes_CheckExact(x.ptr());
}

bool is_plain_key(nb::handle key) {
  if (!PyTuple_CheckExact(key.ptr())) return is_plain(key);
  for (const nb::handle part : nb::borrow<nb::tuple>(key))
    if (!is_plain_key(part)) return false;
  return true;
}

/// Returns all parameters and buffers by name. A tensor with two names occurs twice.
nb::object tensors_of_module(nb::handle module) {
  nb::dict all;
  for (const char* kind : {"named_parameters", "named_buffers"}) {
    const nb::object named = module.attr(kind)(nb::arg("remove_duplicate") = false);
    if (PyDict_MergeFromSeq2(all.ptr(), named.ptr(), 1) < 0) throw nb::python_error();
  }
  return all;
}

}  // namespace

nb::object shareable_array(nb::handle x, bool copy, const std::string& argument) {
  return shareable(x, torch::is_tensor(x.ptr()), copy, argument);
}

class Tree::Step {
 public:
  Step(Tree& tree, std::string_view part) : tree_(tree), before_(tree.path_.size()) {
    if (before_ > 0) tree.path_ += '.';
    tree.path_ += part;
  }
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;
  ~Step() { tree_.path_.resize(before_); }

 private:
  Tree& tree_;
  const std::size_t before_;
};

Tree::Tree(nb::handle x, Copy copy) : copy_(copy == Copy::all), moves_modules_(copy == Copy::as_needed) {
  value_ = walk(x, 0);
}

nb::object Tree::walk(nb::handle x, int depth) {
  if (depth > 0 && is_plain(x)) return nb::borrow(x);
  if (depth == value::kMaxDepth)
    refuse(fmt::format("is nested {} deep or more, or contains itself", value::kMaxDepth));
  if (PyDict_Check(x.ptr())) return walk_dict(x, depth);
  if (PyList_Check(x.ptr()) || PyTuple_Check(x.ptr()))
    return walk_sequence(x, PyTuple_Check(x.ptr()) != 0, depth);
  return leaf(x, depth);
}

/// Returns an array or a plain value, or walks a module. Takes the whole value for an array where a part of it would be
/// a plain value: bytes, or a number of numpy.
nb::object Tree::leaf(nb::handle x, int depth) {
  const bool is_torch = torch::is_tensor(x.ptr());
  if (!is_torch && !as_onecopy_tensor(x.ptr())) {
    nb::object plain = depth > 0 ? plain_of_other(x) : nb::object();
    if (plain.is_valid()) return plain;
    if (is_module(x)) {
      nb::module_::import_("onecopy._modules").attr("prepare")(x, place(), moves_modules_);
      return walk_dict(tensors_of_module(x), depth);
    }
  }
  nb::object fit = array(x, is_torch);
  if (fit.is_valid()) return fit;
  if (depth == 0)
    raise_type_error(fmt::format(
        "x must be an array of onecopy, torch, numpy or another library that speaks DLPack or the buffer "
        "protocol, a dict, list or tuple of arrays, or a torch.nn.Module, not {}",
        short_repr(x)));
  refuse(fmt::format("is of type {}; a bundle holds arrays and plain values in dicts, lists and tuples",
                     nb::type_name(x.type()).c_str()));
}

/// Walks a copy, which no other thread changes. Returns the original if no part had to be replaced.
nb::object Tree::walk_dict(nb::handle x, int depth) {
  nb::object copy = owned(PyDict_Copy(x.ptr()));
  max_together_ = std::max(max_together_, static_cast<std::size_t>(NB_DICT_GET_SIZE(copy.ptr())));
  bool changed = !PyDict_CheckExact(x.ptr());
  PyObject *key, *value;
  for (Py_ssize_t position = 0; PyDict_Next(copy.ptr(), &position, &key, &value) != 0;) {
    if (!is_plain_key(key))
      refuse(fmt::format("has the key {}, which is not a plain value", short_repr(key)));
    const nb::object text =
        PyUnicode_CheckExact(key) ? nb::borrow(key) : nb::object(nb::str(nb::handle(key)));
    const auto name = utf8_of(text);
    if (!name)
      refuse(
          fmt::format("has the key {}, which is not valid text: it has lone surrogates", short_repr(key)));
    const Step step(*this, *name);
    const nb::object fit = walk(value, depth + 1);
    if (fit.is(nb::handle(value))) continue;
    changed = true;
    if (PyDict_SetItem(copy.ptr(), key, fit.ptr()) < 0) throw nb::python_error();
  }
  return changed ? copy : nb::borrow(x);
}

nb::object Tree::walk_sequence(nb::handle x, bool is_tuple, int depth) {
  nb::list copy(x);
  max_together_ = std::max(max_together_, static_cast<std::size_t>(NB_LIST_GET_SIZE(copy.ptr())));
  bool changed = !PyList_CheckExact(x.ptr()) && !PyTuple_CheckExact(x.ptr());
  for (Py_ssize_t i = 0; i < NB_LIST_GET_SIZE(copy.ptr()); ++i) {
    const Step step(*this, fmt::format_int(i).c_str());
    PyObject* const value = NB_LIST_GET_ITEM(copy.ptr(), i);
    nb::object fit = walk(value, depth + 1);
    if (fit.is(nb::handle(value))) continue;
    changed = true;
    PyList_SetItem(copy.ptr(), i, fit.release().ptr());
  }
  if (!changed) return nb::borrow(x);
  return is_tuple ? nb::object(nb::tuple(copy)) : copy;
}

void Tree::make_room_for_many() {
  constexpr std::size_t kMax = 1 << 16;  // most items may be plain values
  const std::size_t expected = std::min(max_together_, kMax);
  seen_.reserve(expected);
  leaves_.reserve(leaves_.size() + expected);
}

nb::object Tree::array(nb::handle x, bool is_torch) {
  if (leaves_.size() == NoCollection::kMany) {
    make_room_for_many();
    no_collection_.begin();
  }
  const std::uint32_t known = seen_.find_or_add(x.ptr(), static_cast<std::uint32_t>(leaves_.size()));
  if (known != SeenObjects::kNew) {
    other_names_.push_back({path_, known});
    return leaves_[known].array;
  }
  const bool fits = !copy_ && is_torch;  // the usual case, which needs no text for errors
  nb::object fit = fits ? nb::borrow(x) : shareable(x, is_torch, copy_, place());
  if (fit.is_valid()) leaves_.push_back({path_, fit});
  return fit;
}

std::string Tree::place() const { return path_.empty() ? "x" : fmt::format("x at \"{}\"", path_); }

void Tree::refuse(const std::string& problem) const {
  throw Error(ErrorCode::invalid_argument, fmt::format("{} {}", place(), problem));
}

}  // namespace onecopy::python
