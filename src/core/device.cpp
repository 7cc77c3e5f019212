// SPDX-License-Identifier: Apache-2.0
#include "onecopy/core/device.h"

#include <fmt/format.h>

#include <charconv>
#include <optional>

#include "core/throw_error.h"

namespace onecopy {
namespace {

/// Parses the digits after "cuda:" and the like, without signs or leading zeros.
std::optional<std::int16_t> parse_index(std::string_view digits) noexcept {
  if (digits.empty() || digits[0] == '-' || (digits[0] == '0' && digits.size() > 1)) return std::nullopt;
  std::int16_t index = 0;
  const char* end = digits.data() + digits.size();
  const auto [at, error] = std::from_chars(digits.data(), end, index);
  if (error != std::errc{} || at != end) return std::nullopt;
  return index;
}

}  // namespace

Device Device::parse(std::string_view text) {
  if (text == "cpu") return kCpu;
  for (const DeviceType type : {DeviceType::cuda, DeviceType::npu}) {
    const std::string_view prefix = onecopy::name(type);
    if (!text.starts_with(prefix) || text.size() <= prefix.size() || text[prefix.size()] != ':') continue;
    if (const auto index = parse_index(text.substr(prefix.size() + 1))) return {type, *index};
  }
  throw_error(ErrorCode::invalid_argument, "\"{}\" is not a device; write \"cpu\", \"cuda:0\" or \"npu:0\"",
              text);
}

std::string Device::str() const {
  if (type == DeviceType::cpu) return "cpu";
  return fmt::format("{}:{}", onecopy::name(type), index);
}

std::string Uuid::str() const {
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    fmt::format_to(std::back_inserter(text), "{:02x}", bytes[i]);
  }
  return text;
}

std::string_view name(DeviceType type) noexcept {
  switch (type) {
    case DeviceType::cpu: return "cpu";
    case DeviceType::cuda: return "cuda";
    case DeviceType::npu: return "npu";
  }
  return "unknown";
}

}  // namespace onecopy
