// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "onecopy/core/error.h"

/// Errors about files of tensors. Thread safety: all functions may be called concurrently.
namespace onecopy {

/// The error of a file that is no safetensors file. If the file's beginning or name tells its format, the message
/// says the way from there. The message names the file.
Error about_format(const Error& error, const std::string& path);

/// Runs body(). Its errors name the file.
template <class Body>
auto about_file(const std::string& path, Body&& body) {
  try {
    return body();
  } catch (const Error& error) {
    if (error.code() == ErrorCode::bad_file) throw about_format(error, path);
    if (std::string_view(error.what()).find(path) != std::string_view::npos) throw;
    throw Error(error.code(), path + ": " + error.what(), error.vendor_code(), error.domain());
  }
}

}  // namespace onecopy
