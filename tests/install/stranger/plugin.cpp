// SPDX-License-Identifier: Apache-2.0
// A plug-in that uses onecopy: a process loads it beside others, each of which has a copy of onecopy of its own.
#include <onecopy/onecopy.h>

#include <cstdio>
#include <string>
#include <vector>

namespace {

std::vector<onecopy::Tensor>& kept() {
  static std::vector<onecopy::Tensor> tensors;
  return tensors;
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

/// Returns the text of a tensor that contains `value`.
EXPORT const char* plugin_share(float value) {
  static std::string text;
  kept().push_back(onecopy::empty({onecopy::DType::f32, {100}}));
  kept().back().as<float>()[99] = value;
  text = onecopy::share(kept().back()).to_text();
  return text.c_str();
}

/// Returns the value in the tensor of a text and writes another one.
EXPORT float plugin_exchange(const char* text, float value) {
  const onecopy::Tensor tensor = onecopy::open(onecopy::Handle::from_text(text));
  const float before = tensor.as<float>()[99];
  tensor.as<float>()[99] = value;
  return before;
}

EXPORT float plugin_read() { return kept().back().as<float>()[99]; }

/// Returns whether an error of onecopy is caught by its type.
EXPORT bool plugin_catches() {
  try {
    onecopy::open(onecopy::Handle::from_text("onecopy:"));
  } catch (const onecopy::Error& error) {
    return error.code() == onecopy::ErrorCode::bad_handle;
  }
  return false;
}
