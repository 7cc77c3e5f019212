// SPDX-License-Identifier: Apache-2.0
#include "support/numbers.h"

#include <cstdlib>
#include <cstring>
#include <numeric>
#include <vector>

#include "onecopy/share/share.h"

namespace onecopy::testing {

Device device() {
  const char* text = std::getenv("ONECOPY_TEST_DEVICE");
  return text && *text ? Device::parse(text) : kCpu;
}

Tensor numbers(std::int64_t count, std::int64_t first) {
  Tensor tensor = empty(Layout(DType::i64, {count}), device());
  std::vector<std::int64_t> content(static_cast<std::size_t>(count));
  std::iota(content.begin(), content.end(), first);
  copy_bytes_and_wait({tensor.data(), tensor.device(), content.data(), kCpu, tensor.nbytes()});
  return tensor;
}

Tensor filled_bytes(std::int64_t count, int value, bool pinned) {
  Tensor tensor = empty(Layout(DType::u8, {count}), {.pinned = pinned});
  std::memset(tensor.data(), value, tensor.nbytes());
  return tensor;
}

}  // namespace onecopy::testing
