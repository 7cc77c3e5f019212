// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "onecopy/core/error.h"

/// Errors about files of tensors. Thread safety: all functions may be called concurrently.
namespace onecopy {

/// The error of a file that is no safetensors file, with the way from the format that it has, if its beginning or its
/// name says which. Its message names the file.
Error about_format(const Error& error, const std::string& path);

/// body(), whose errors say which file they are about.
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
