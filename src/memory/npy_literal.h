// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace onecopy {

/// The three fields of a .npy header.
struct NpyFields {
  std::string descr;
  bool fortran_order = false;
  std::vector<std::int64_t> shape;
};

[[noreturn]] void refuse_npy(const std::string& why);

/// Parses the Python literal in a .npy header: a dict of a string, a bool and a tuple of integers. Throws bad_file, and
/// unsupported if the descr is a list of fields.
NpyFields parse_npy_literal(std::string_view text);

}  // namespace onecopy
