// SPDX-License-Identifier: Apache-2.0
#include "array/dtype.h"

#include <array>
#include <string_view>

namespace onecopy::python {
namespace {

constexpr std::size_t kCount = static_cast<std::size_t>(kLastDType) + 1;

std::array<PyObject*, kCount> make_objects() {
  const nb::object type = nb::module_::import_("onecopy.dtypes").attr("DType");
  std::array<PyObject*, kCount> objects{};
  for (std::size_t i = static_cast<std::size_t>(kFirstDType); i < kCount; ++i) {
    const std::string_view name = onecopy::name(static_cast<DType>(i));
    objects[i] = type(nb::str(name.data(), name.size())).release().ptr();
  }
  return objects;
}

std::optional<DType> signed_int(std::size_t bytes) noexcept {
  switch (bytes) {
    case 1: return DType::i8;
    case 2: return DType::i16;
    case 4: return DType::i32;
    case 8: return DType::i64;
    default: return std::nullopt;
  }
}

std::optional<DType> unsigned_int(std::size_t bytes) noexcept {
  switch (bytes) {
    case 1: return DType::u8;
    case 2: return DType::u16;
    case 4: return DType::u32;
    case 8: return DType::u64;
    default: return std::nullopt;
  }
}

}  // namespace

nb::object dtype_object(DType dtype) {
  static std::array<PyObject*, kCount> objects{};  // no initialiser: others would wait for it with the GIL
  if (!objects.back()) {
    const auto made = make_objects();
    if (!objects.back()) objects = made;  // another thread may have been quicker
  }
  return nb::borrow(objects[static_cast<std::size_t>(dtype)]);
}

bool is_native_to_numpy(DType dtype) noexcept { return buffer_format(dtype) != nullptr; }

const char* buffer_format(DType dtype) noexcept {
  switch (dtype) {
    case DType::boolean: return "?";
    case DType::u8: return "B";
    case DType::i8: return "b";
    case DType::u16: return "H";
    case DType::i16: return "h";
    case DType::u32: return "I";
    case DType::i32: return "i";
    case DType::u64: return sizeof(long) == 8 ? "L" : "Q";  // numpy's letter for uint64
    case DType::i64: return sizeof(long) == 8 ? "l" : "q";
    case DType::f16: return "e";
    case DType::f32: return "f";
    case DType::f64: return "d";
    case DType::c64: return "Zf";
    case DType::c128: return "Zd";
    default: return nullptr;
  }
}

std::optional<DType> parse_buffer_format(const char* format, std::size_t element_size) noexcept {
  if (!format) return DType::u8;
  std::string_view element = format;
  if (element.starts_with('@') || element.starts_with('=') || element.starts_with('<'))
    element.remove_prefix(1);
  // How many bytes "l" has depends on the platform and the prefix.
  if (element.size() == 1 && std::string_view("bhilqn").find(element[0]) != std::string_view::npos)
    return signed_int(element_size);
  if (element.size() == 1 && std::string_view("BHILQN").find(element[0]) != std::string_view::npos)
    return unsigned_int(element_size);
  for (std::size_t i = static_cast<std::size_t>(kFirstDType); i < kCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    const char* const word = buffer_format(dtype);
    if (word && element == word && size_of(dtype) == element_size) return dtype;
  }
  return std::nullopt;
}

}  // namespace onecopy::python
