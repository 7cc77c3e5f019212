// SPDX-License-Identifier: Apache-2.0
// How much memory a process may pin: ONECOPY_PIN_LIMIT, or half of the memory that it may use.
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string_view>

#include "core/throw_error.h"
#include "os/memory_limit.h"
#include "share/runtime/pinning.h"

namespace onecopy {

namespace {

std::uint64_t parse_limit(std::string_view text) {
  constexpr std::string_view kUnits = "KkMmGg";
  std::uint64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  const std::size_t unit = rest == end ? 0 : std::min(kUnits.find(*rest), kUnits.size()) / 2 * 10 + 10;
  if (error != std::errc() || unit > 30 || number > ~std::uint64_t{0} >> unit)
    throw_error(ErrorCode::invalid_argument,
                "ONECOPY_PIN_LIMIT is \"{}\"; it is a number of bytes, or one with K, M or G", text);
  return number << unit;
}

}  // namespace

std::uint64_t Pinning::limit() {
  if (const char* const said = std::getenv("ONECOPY_PIN_LIMIT"); said && *said) return parse_limit(said);
  const auto pages = static_cast<std::uint64_t>(std::max(0L, ::sysconf(_SC_PHYS_PAGES)));
  std::uint64_t memory = pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  if (const auto cgroup = memory_limit()) memory = std::min(memory, cgroup->limit);
  return memory / 2;
}

}  // namespace onecopy
