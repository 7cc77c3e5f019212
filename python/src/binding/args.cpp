// SPDX-License-Identifier: Apache-2.0
#include "binding/args.h"

#include <fmt/format.h>
#include <nanobind/stl/string.h>

#include <array>

#include "core/closest_word.h"
#include "device/backend.h"
#include "onecopy/core/error.h"
#include "torch/torch.h"

namespace onecopy::python {
namespace {

constexpr std::size_t kLongestRepr = 60;

[[noreturn]] void refuse_argument(const std::string& message) {
  throw Error(ErrorCode::invalid_argument, message);
}

std::int64_t size_arg(nb::handle value, const char* argument) {
  if (PyBool_Check(value.ptr()) || !PyIndex_Check(value.ptr()))
    raise_type_error(
        fmt::format("{} must be an int or a sequence of ints, not {}", argument, short_repr(value)));
  const Py_ssize_t size = PyNumber_AsSsize_t(value.ptr(), nullptr);  // clips; a clipped size is refused
  if (size == -1 && PyErr_Occurred()) throw nb::python_error();
  if (size < 0) refuse_argument(fmt::format("{} has the negative size {}", argument, short_repr(value)));
  return size;
}

/// Returns an attribute if it is a str; empty otherwise.
std::optional<std::string> text_attr(nb::handle value, const char* attribute) {
  const nb::object found = nb::getattr(value, attribute, nb::none());
  if (const auto text = utf8_of(found)) return std::string(*text);
  return std::nullopt;
}

/// Returns the dtype that numpy and torch use for int, float and complex; null for other types. bool has its own name.
const char* name_for_python(nb::handle type) {
  if (type.is(nb::handle(reinterpret_cast<PyObject*>(&PyLong_Type)))) return "int64";
  if (type.is(nb::handle(reinterpret_cast<PyObject*>(&PyFloat_Type)))) return "float64";
  if (type.is(nb::handle(reinterpret_cast<PyObject*>(&PyComplex_Type)))) return "complex128";
  return nullptr;
}

std::string dtype_name(nb::handle value, const char* argument) {
  if (nb::isinstance<nb::str>(value)) return text_of(value, argument);
  if (const char* const name = name_for_python(value)) return name;
  if (auto name = text_attr(value, "name")) return *name;      // numpy.dtype
  if (auto name = text_attr(value, "__name__")) return *name;  // numpy.float32
  const std::string text = text_of(nb::str(value), argument);  // torch.float32
  constexpr std::string_view prefix = "torch.";
  return text.starts_with(prefix) ? text.substr(prefix.size()) : text;
}

/// Parses the name of a device. "cuda" means torch's current CUDA device.
Device parse_device(std::string_view text) {
  for (const DeviceType type : backend_types())
    if (type != DeviceType::cpu && text == onecopy::name(type)) return {type, torch::current_ordinal(type)};
  return Device::parse(text);
}

/// Returns the repr of a value, or an empty text if it raises: torch cannot print tensors of some dtypes.
std::string repr_if_any(nb::handle value) {
  try {
    return std::string(utf8_of(nb::repr(value)).value_or(""));
  } catch (nb::python_error& error) {
    if (error.matches(PyExc_Exception)) return {};
    throw;
  }
}

}  // namespace

void raise_type_error(const std::string& message) {
  PyErr_SetString(PyExc_TypeError, message.c_str());
  throw nb::python_error();
}

std::string short_repr(nb::handle value) {
  std::string text = repr_if_any(value);
  if (const std::size_t end = text.find('\n'); end != std::string::npos) text = text.substr(0, end) + "...";
  if (text.empty() || text.size() > kLongestRepr)
    return fmt::format("<{} object>", nb::type_name(value.type()).c_str());
  return text;
}

std::optional<std::string_view> utf8_of(nb::handle value) {
  if (!nb::isinstance<nb::str>(value)) return std::nullopt;
  Py_ssize_t size = 0;
  if (const char* text = PyUnicode_AsUTF8AndSize(value.ptr(), &size))
    return std::string_view(text, static_cast<std::size_t>(size));
  if (!PyErr_ExceptionMatches(PyExc_UnicodeError)) throw nb::python_error();
  PyErr_Clear();
  return std::nullopt;
}

std::string text_of(nb::handle value, const char* argument) {
  if (const auto text = utf8_of(value)) return std::string(*text);
  if (!nb::isinstance<nb::str>(value))
    raise_type_error(fmt::format("{} must be a str, not {}", argument, short_repr(value)));
  refuse_argument(fmt::format("{} is {}, which is not valid text: it contains lone surrogates", argument,
                              short_repr(value)));
}

nb::tuple tuple_of(std::span<const std::int64_t> numbers) {
  nb::object tuple = owned(PyTuple_New(static_cast<Py_ssize_t>(numbers.size())));
  for (std::size_t i = 0; i < numbers.size(); ++i)
    NB_TUPLE_SET_ITEM(tuple.ptr(), static_cast<Py_ssize_t>(i), nb::int_(numbers[i]).release().ptr());
  return nb::borrow<nb::tuple>(tuple);
}

std::vector<std::int64_t> shape_arg(nb::handle value, const char* argument) {
  if (PyIndex_Check(value.ptr())) return {size_arg(value, argument)};
  if (nb::isinstance<nb::str>(value) || PyBytes_Check(value.ptr()) || !PySequence_Check(value.ptr()))
    raise_type_error(
        fmt::format("{} must be an int or a sequence of ints, not {}", argument, short_repr(value)));
  std::vector<std::int64_t> shape;
  for (const nb::handle item : nb::tuple(value)) shape.push_back(size_arg(item, argument));
  return shape;
}

/// Raises for a byte order other than the machine's, since numpy's dtype(">f4") has the same name as the native one.
void check_byte_order(nb::handle dtype, const char* argument) {
  if (nb::getattr(dtype, "isnative", nb::none()).is(nb::handle(Py_False)))
    refuse_argument(
        fmt::format("{} must be in this machine's byte order, not {}; .newbyteorder(\"=\") makes it so",
                    argument, short_repr(dtype)));
}

DType dtype_arg(nb::handle value, const char* argument) {
  check_byte_order(value, argument);
  if (const auto dtype = parse_dtype(dtype_name(value, argument))) return *dtype;
  const std::string message = fmt::format(
      "{} must name an element type that onecopy has, such as \"float32\", \"bfloat16\" or "
      "\"int64\", not {}{}",
      argument, short_repr(value),
      PyIndex_Check(value.ptr()) ? "; the shape is one argument, such as (2, 3)"
                                 : did_you_mean(value, dtype_names()));
  if (nb::isinstance<nb::str>(value)) refuse_argument(message);
  raise_type_error(message);
}

Device device_arg(nb::handle value, const char* argument) {
  std::string text;
  if (nb::isinstance<nb::str>(value)) text = text_of(value, argument);
  else if (text_attr(value, "type") && nb::hasattr(value, "index"))
    text = text_of(nb::str(value), argument);
  else
    raise_type_error(fmt::format("{} must be a name such as \"cpu\", \"cuda:0\" or \"npu:0\", not {}",
                                 argument, short_repr(value)));
  try {
    return parse_device(text);
  } catch (const Error& error) {
    refuse_argument(fmt::format("{}: {}", argument, error.what()));
  }
}

Access access_arg(nb::handle value, const char* argument) {
  const auto text = utf8_of(value);
  if (text == "readwrite") return Access::read_write;
  if (text == "read") return Access::read_only;
  constexpr std::array<std::string_view, 2> kWords{"readwrite", "read"};
  const std::string message = fmt::format("{} must be \"readwrite\" or \"read\", not {}{}", argument,
                                          short_repr(value), did_you_mean(value, kWords));
  if (!nb::isinstance<nb::str>(value)) raise_type_error(message);
  refuse_argument(message);
}

Framework framework_arg(nb::handle value, const char* argument, Framework none) {
  if (value.is_none()) return none;
  const auto text = utf8_of(value);
  if (text == "onecopy") return Framework::onecopy;
  if (text == "torch") return Framework::torch;
  if (text == "numpy") return Framework::numpy;
  constexpr std::array<std::string_view, 3> kWords{"onecopy", "torch", "numpy"};
  const std::string message = fmt::format("{} must be None, \"onecopy\", \"torch\" or \"numpy\", not {}{}",
                                          argument, short_repr(value), did_you_mean(value, kWords));
  if (!nb::isinstance<nb::str>(value)) raise_type_error(message);
  refuse_argument(message);
}

std::string did_you_mean(nb::handle value, std::span<const std::string_view> words) {
  const auto text = utf8_of(value);
  return text ? onecopy::did_you_mean(*text, words) : std::string();
}

std::string path_arg(nb::handle value, const char* argument) {
  PyObject* bytes = nullptr;
  if (PyUnicode_FSConverter(value.ptr(), &bytes) != 0) {
    const nb::bytes path = nb::steal<nb::bytes>(bytes);
    return {path.c_str(), path.size()};
  }
  if (!PyErr_ExceptionMatches(PyExc_TypeError)) throw nb::python_error();
  PyErr_Clear();
  raise_type_error(
      fmt::format("{} must be a str, bytes or os.PathLike, not {}", argument, short_repr(value)));
}

nb::object import_package(const char* package, const char* what, const char* instead) {
  try {
    return nb::module_::import_(package);
  } catch (nb::python_error& error) {
    const nb::object missing = nb::getattr(error.value(), "name", nb::none());
    if (!error.matches(PyExc_ModuleNotFoundError) || !missing.equal(nb::str(package))) throw;
  }
  raise(nb::module_::import_("onecopy.errors").attr("_missing_package")(package, what, instead));
}

const char* name(Access access) noexcept { return access == Access::read_only ? "read" : "readwrite"; }

}  // namespace onecopy::python
