// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "binding/module.h"
#include "onecopy/core/device.h"
#include "onecopy/core/dtype.h"
#include "onecopy/core/tensor_view.h"

/// Converts arguments of Python functions that accept several types. Raises TypeError for a wrong type and
/// InvalidArgument for a wrong value, with the argument's name. Thread safety: all functions are called with the GIL
/// held.
namespace onecopy::python {

/// The library whose arrays a caller wants.
enum class Framework : std::uint8_t { onecopy, torch, numpy };

[[noreturn]] void raise_type_error(const std::string& message);
/// Returns repr(value), cut to the length of a line.
std::string short_repr(nb::handle value);

/// Returns a str as UTF-8, valid while the str lives. Returns nothing for other objects, and for a str with lone
/// surrogates.
std::optional<std::string_view> utf8_of(nb::handle value);
/// Returns a str as UTF-8. Raises TypeError and InvalidArgument for others.
std::string text_of(nb::handle value, const char* argument);

/// Returns the numbers, such as a shape or strides, as a tuple of ints.
nb::tuple tuple_of(std::span<const std::int64_t> numbers);
/// Returns the shape of an int or a sequence of ints.
std::vector<std::int64_t> shape_arg(nb::handle value, const char* argument);
/// Returns the dtype of a name ("float32"), of a dtype of numpy, torch or jax, or of bool, int, float or complex.
DType dtype_arg(nb::handle value, const char* argument);
/// Returns the device of a name ("cpu", "cuda:0", or "cuda" for torch's current device), or of a torch.device.
Device device_arg(nb::handle value, const char* argument);
/// Returns the access of "readwrite" or "read".
Access access_arg(nb::handle value, const char* argument);
/// Returns the framework of "onecopy", "torch" or "numpy", or `none` if the value is None.
Framework framework_arg(nb::handle value, const char* argument, Framework none = Framework::onecopy);
/// Returns the path of a str, bytes or os.PathLike in the encoding of the file system.
std::string path_arg(nb::handle value, const char* argument);

const char* name(Access access) noexcept;

/// Returns "; did you mean \"float32\"?" if the value is a str that is nearly one of the words, or nothing.
std::string did_you_mean(nb::handle value, std::span<const std::string_view> words);

/// Imports a package. If it is not installed, raises MissingPackage with `instead` as the alternative.
nb::object import_package(const char* package, const char* what, const char* instead = "");

}  // namespace onecopy::python
