// SPDX-License-Identifier: Apache-2.0
#include "value/large_bytes.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>

#include "binding/device.h"
#include "binding/gil.h"
#include "onecopy/core/layout.h"
#include "onecopy/share/share.h"
#include "os/crew.h"
#include "value/reader.h"
#include "value/tags.h"

namespace onecopy::python {
namespace {

constexpr std::size_t kSlice = std::size_t{2}
                               << 20;  ///< what a thread copies at a time, and the size of a huge page
constexpr std::size_t kMaxHelpers = 3;

/// Copies bytes without the GIL, and calls `look` with each slice of the copy while the slice is in the caches. Several
/// threads copy a large number of bytes. Slices end where huge pages of the copy end, since the kernel would clear a page
/// twice for two threads that write to it first.
void copy_bytes(std::byte* to, ByteSpan from, const std::function<void(ByteSpan)>& look = {}) {
  const std::size_t before = reinterpret_cast<std::uintptr_t>(to) % kSlice;
  std::atomic<std::size_t> next = 0;
  const std::function<void()> copy_slices = [&] {
    for (std::size_t at = next.fetch_add(kSlice); at < before + from.size(); at = next.fetch_add(kSlice)) {
      const std::size_t begin = std::max(at, before) - before;
      const ByteSpan slice = from.subspan(begin, std::min(at + kSlice - before, from.size()) - begin);
      std::memcpy(to + begin, slice.data(), slice.size());
      if (look) look({to + begin, slice.size()});
    }
  };
  const std::size_t processors = std::max(1U, std::thread::hardware_concurrency());
  const std::size_t helpers = from.size() < 4 * kSlice ? 0 : std::min(kMaxHelpers, processors - 1);
  without_gil([&] {
    const Crew crew(helpers, copy_slices);
    copy_slices();
  });
}

/// Asks for huge pages in memory that is about to be filled for the first time.
std::byte* with_huge_pages(void* memory, std::size_t size) {
  auto* const begin = static_cast<std::byte*>(memory);
  const std::size_t skipped = (kSlice - reinterpret_cast<std::uintptr_t>(memory) % kSlice) % kSlice;
  if (skipped < size) ::madvise(begin + skipped, (size - skipped) / kSlice * kSlice, MADV_HUGEPAGE);
  return begin;
}

bool is_ascii(ByteSpan bytes) {
  constexpr std::uint64_t kHighBits = 0x8080808080808080;
  std::uint64_t seen = 0;
  std::size_t at = 0;
  for (; at + sizeof seen <= bytes.size(); at += sizeof seen) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, sizeof word);
    seen |= word;
  }
  for (; at < bytes.size(); ++at) seen |= static_cast<std::uint64_t>(bytes[at]);
  return (seen & kHighBits) == 0;
}

/// Makes a str. Checks the copy of the bytes, since the sender may change the row.
nb::object text_of(ByteSpan utf8) {
  const auto size = static_cast<Py_ssize_t>(utf8.size());
  nb::object ascii = owned(PyUnicode_New(size, 127));
  std::byte* const copy = with_huge_pages(PyUnicode_1BYTE_DATA(ascii.ptr()), utf8.size());
  std::atomic<bool> all_ascii = true;
  copy_bytes(copy, utf8, [&](ByteSpan slice) {
    if (all_ascii.load(std::memory_order_relaxed) && !is_ascii(slice)) all_ascii = false;
  });
  if (all_ascii) return ascii;
  PyObject* const text = PyUnicode_DecodeUTF8(reinterpret_cast<const char*>(copy), size, nullptr);
  if (text || !PyErr_ExceptionMatches(PyExc_UnicodeDecodeError)) return owned(text);
  PyErr_Clear();
  value::refuse("a str is not UTF-8");
}

}  // namespace

Tensor row_of(ByteSpan bytes) {
  Tensor row = empty(Layout(DType::u8, {static_cast<std::int64_t>(bytes.size())}));
  copy_bytes(row.as<std::byte>(), bytes);
  return row;
}

Tensor row_of_bytearray(PyObject* object) {
  Py_buffer view;
  if (PyObject_GetBuffer(object, &view, PyBUF_SIMPLE) != 0) throw nb::python_error();
  const std::unique_ptr<Py_buffer, void (*)(Py_buffer*)> held(&view, &PyBuffer_Release);
  return row_of({static_cast<const std::byte*>(view.buf), static_cast<std::size_t>(view.len)});
}

nb::object object_of_row(const Tensor& row, std::uint8_t flags) {
  if (!is_on_host(row) || !value::is_row(row.layout())) value::refuse("bytes are not in a row");
  const ByteSpan bytes(row.as<const std::byte>(), row.nbytes());
  if (flags == value::kTextRow) return text_of(bytes);
  const bool is_bytes = flags == value::kBytesRow;
  const auto size = static_cast<Py_ssize_t>(bytes.size());
  nb::object made = owned(is_bytes ? PyBytes_FromStringAndSize(nullptr, size)
                                   : PyByteArray_FromStringAndSize(nullptr, size));
  void* const memory = is_bytes ? PyBytes_AsString(made.ptr()) : PyByteArray_AsString(made.ptr());
  copy_bytes(with_huge_pages(memory, bytes.size()), bytes);
  return made;
}

}  // namespace onecopy::python
