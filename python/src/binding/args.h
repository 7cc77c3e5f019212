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

/// Arguments of Python functions that accept more than one spelling. A refusal names the argument: a TypeError for a
/// wrong type, InvalidArgument (a ValueError) for a wrong value. Thread safety: all functions are called with the GIL
/// held.
namespace onecopy::python {

/// The library whose arrays a caller wants.
enum class Framework : std::uint8_t { onecopy, torch, numpy };

[[noreturn]] void raise_type_error(const std::string& message);
/// repr(value), not longer than a line.
std::string short_repr(nb::handle value);

/// A str as UTF-8, while it lives. Empty for other objects, and for a str with lone surrogates, which has no UTF-8.
std::optional<std::string_view> utf8_of(nb::handle value);
/// A str as UTF-8. Raises TypeError and InvalidArgument for others.
std::string text_of(nb::handle value, const char* argument);

/// An int, or a sequence of ints.
std::vector<std::int64_t> shape_arg(nb::handle value, const char* argument);
/// A name ("float32"), a dtype of numpy, torch or jax, or bool, int, float or complex.
DType dtype_arg(nb::handle value, const char* argument);
/// A name ("cpu", "cuda:0", or "cuda" for torch's current device), or a torch.device.
Device device_arg(nb::handle value, const char* argument);
/// "readwrite" or "read".
Access access_arg(nb::handle value, const char* argument);
/// "onecopy", "torch", "numpy", or None, which means `none`.
Framework framework_arg(nb::handle value, const char* argument, Framework none = Framework::onecopy);
/// A str, bytes or os.PathLike, as the system spells it.
std::string path_arg(nb::handle value, const char* argument);

const char* name(Access access) noexcept;

/// Returns "; did you mean \"float32\"?" if the value is a str that is nearly one of the words, or nothing.
std::string did_you_mean(nb::handle value, std::span<const std::string_view> words);

/// A package of the user's. If it is not installed, raises MissingPackage, which names `instead` as the alternative.
nb::object import_package(const char* package, const char* what, const char* instead = "");

}  // namespace onecopy::python
