// SPDX-License-Identifier: Apache-2.0
// Errors: the code says what a program can do, and the text says what happened.
#include <onecopy/onecopy.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>

namespace {

using onecopy::ErrorCode;

/// Opens a tensor, or returns nothing if the memory is gone. Other errors reach the caller.
std::optional<onecopy::Tensor> try_open(const std::string& text) {
  try {
    return onecopy::open(onecopy::Handle::from_text(text), {.timeout = std::chrono::seconds(1)});
  } catch (const onecopy::Error& error) {
    switch (error.code()) {
      case ErrorCode::stale_handle:  // freed
      case ErrorCode::owner_died:    // ended with its process
        std::printf("%s: ask for a new handle\n", name(error.code()));
        return {};
      default: throw;
    }
  }
}

}  // namespace

int main() {
  std::string text;
  {
    const onecopy::Tensor tensor = onecopy::empty({onecopy::DType::f32, {1000}});
    const onecopy::Handle handle = onecopy::share(tensor);
    text = handle.to_text();
    std::printf("opened: %s\n", try_open(text)->layout().str().c_str());
    try {
      tensor.as<double>();
    } catch (const onecopy::Error& error) {
      std::printf("%s\n", name(error.code()));
    }
  }
  try_open(text);
  try {
    onecopy::empty({onecopy::DType::u8, {std::int64_t{1} << 60}});
  } catch (const onecopy::Error& error) {
    std::printf("a smaller request may succeed: %s\n", is_shortage(error.code()) ? "yes" : "no");
  }
}
