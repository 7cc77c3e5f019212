// SPDX-License-Identifier: Apache-2.0
#include "memory/npy.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>
#include <vector>

#include "core/throw_error.h"
#include "os/file.h"
#include "os/memfd.h"

namespace onecopy {
namespace {

/// The three fields of a .npy header.
struct NpyFields {
  std::string descr;
  bool fortran_order = false;
  std::vector<std::int64_t> shape;
};

[[noreturn]] void refuse_npy(const std::string& why) {
  throw Error(ErrorCode::bad_file, "this is not a valid .npy file: " + why);
}

/// Parses the Python literal in a .npy header: a dict of a string, a bool and a tuple of integers. Throws bad_file, and
/// unsupported if the descr is a list of fields.
class LiteralReader {
 public:
  explicit LiteralReader(std::string_view text) : text_(text) {}

  NpyFields read() {
    expect('{');
    while (!accept('}')) {
      const std::string key = quoted();
      expect(':');
      field(key);
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    skip_space();
    if (at_ != text_.size()) refuse_npy("there is more after the dict of its header");
    if (seen_ != (kDescr | kOrder | kShape)) refuse_npy("its header lacks descr, fortran_order or shape");
    return fields_;
  }

 private:
  // Bits that mark the fields that were seen.
  static constexpr unsigned kDescr = 1;
  static constexpr unsigned kOrder = 2;
  static constexpr unsigned kShape = 4;

  void field(const std::string& key) {
    if (key == "descr") {
      once(kDescr, key);
      skip_space();
      if (at_ < text_.size() && text_[at_] == '[')
        throw Error(ErrorCode::unsupported, "arrays of records (structured dtypes) cannot be shared");
      fields_.descr = quoted();
    } else if (key == "fortran_order") {
      once(kOrder, key);
      fields_.fortran_order = boolean();
    } else if (key == "shape") {
      once(kShape, key);
      tuple();
    } else {
      refuse_npy("its header has a field other than descr, fortran_order and shape");
    }
  }
  void once(unsigned bit, const std::string& key) {
    if ((seen_ & bit) != 0) refuse_npy(fmt::format("{} comes twice in its header", key));
    seen_ |= bit;
  }
  void skip_space() {
    while (at_ < text_.size() &&
           (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t' || text_[at_] == '\r'))
      ++at_;
  }
  bool accept(char c) {
    skip_space();
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!accept(c)) refuse_npy(fmt::format("'{}' is missing at byte {} of its header", c, at_));
  }
  bool accept_word(std::string_view word) {
    skip_space();
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }
  bool boolean() {
    if (accept_word("True")) return true;
    if (!accept_word("False")) refuse_npy("fortran_order is neither True nor False");
    return false;
  }
  std::string quoted() {
    const char quote = accept('\'') ? '\'' : '"';
    if (quote == '"') expect('"');
    const std::size_t end = text_.find(quote, at_);
    if (end == std::string_view::npos) refuse_npy("a string in its header does not end");
    const std::string_view inside = text_.substr(at_, end - at_);
    if (inside.size() > 64 || inside.find('\\') != std::string_view::npos)
      refuse_npy("a string in its header is too long");
    for (const char c : inside)
      if (c < 0x20 || c > 0x7e) refuse_npy("a string in its header is not ASCII");
    at_ = end + 1;
    return std::string(inside);
  }
  void tuple() {
    expect('(');
    while (!accept(')')) {
      if (fields_.shape.size() == kMaxDims)
        refuse_npy(fmt::format("it has more than {} dimensions", kMaxDims));
      fields_.shape.push_back(integer());
      if (!accept(',')) {
        expect(')');
        break;
      }
    }
  }
  std::int64_t integer() {
    skip_space();
    std::int64_t value = 0;
    const char* const begin = text_.data() + at_;
    const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), value);
    if (error != std::errc() || value < 0)
      refuse_npy("a size in its shape is not an integer from 0 to 2^63 - 1");
    at_ += static_cast<std::size_t>(end - begin);
    accept_word("L");  // written by Python 2
    return value;
  }

  std::string_view text_;
  std::size_t at_ = 0;
  unsigned seen_ = 0;
  NpyFields fields_;
};

constexpr std::array kMagic{std::byte{0x93}, std::byte{'N'}, std::byte{'U'},
                            std::byte{'M'},  std::byte{'P'}, std::byte{'Y'}};
constexpr std::size_t kBeforeLength = 8;  // magic and version

struct LetterRow {
  char kind;
  char digits[3];
  DType dtype;
};

constexpr std::array kLetterRows{
    LetterRow{'b', "1", DType::boolean}, LetterRow{'u', "1", DType::u8},    LetterRow{'i', "1", DType::i8},
    LetterRow{'u', "2", DType::u16},     LetterRow{'i', "2", DType::i16},   LetterRow{'u', "4", DType::u32},
    LetterRow{'i', "4", DType::i32},     LetterRow{'u', "8", DType::u64},   LetterRow{'i', "8", DType::i64},
    LetterRow{'f', "2", DType::f16},     LetterRow{'f', "4", DType::f32},   LetterRow{'f', "8", DType::f64},
    LetterRow{'c', "8", DType::c64},     LetterRow{'c', "16", DType::c128},
};

/// Parses e.g. "<f4" or "|u1": byte order, kind, bytes.
DType dtype_of(const std::string& descr) {
  if (descr.find('O') != std::string::npos)
    throw Error(ErrorCode::unsupported, "arrays of Python objects hold pickles, which onecopy never loads");
  const bool ordered = !descr.empty() && std::string_view("<>|=").find(descr[0]) != std::string_view::npos;
  const std::string_view rest = std::string_view(descr).substr(ordered ? 1 : 0);
  for (const LetterRow& row : kLetterRows) {
    if (rest.empty() || rest[0] != row.kind || rest.substr(1) != row.digits) continue;
    if (descr[0] == '>' && size_of(row.dtype) > 1)
      throw_error(ErrorCode::unsupported, "big-endian elements ({}): convert them with astype('<{}')",
                  descr, rest);
    return row.dtype;
  }
  throw_error(ErrorCode::unsupported, "no dtype of onecopy matches the descr '{}'", descr);
}

Layout npy_layout(const NpyFields& fields) {
  const DType dtype = dtype_of(fields.descr);
  try {
    Layout row_major(dtype, fields.shape);
    if (!fields.fortran_order || row_major.numel() == 0) return row_major;
    std::vector<std::int64_t> strides;
    std::int64_t step = 1;
    for (const std::int64_t size : fields.shape) {
      strides.push_back(step);
      step *= size;
    }
    return Layout(dtype, fields.shape, strides);
  } catch (const Error& error) {
    refuse_npy(error.what());
  }
}

struct Place {
  std::uint64_t header;  // bytes from the start of the file
  std::uint64_t data;
};

std::size_t length_bytes(ByteSpan head) {
  if (head.size() < kBeforeLength || !std::equal(kMagic.begin(), kMagic.end(), head.begin()))
    refuse_npy("it does not start with \\x93NUMPY");
  const auto major = std::to_integer<unsigned>(head[6]);
  if (major < 1 || major > 3)
    throw_error(ErrorCode::unsupported, "the .npy format has version {}; 1 to 3 are known", major);
  return major == 1 ? 2 : 4;
}

/// Finds the parts of the file. The bytes may be anything.
Place places(ByteSpan head, std::uint64_t file_size) {
  const std::size_t width = length_bytes(head);
  if (head.size() < kBeforeLength + width) refuse_npy("it ends within its header");
  const std::uint64_t length = width == 2 ? load<std::uint16_t>(head.data() + kBeforeLength)
                                          : load<std::uint32_t>(head.data() + kBeforeLength);
  const Place place{kBeforeLength + width, kBeforeLength + width + length};
  if (length > kMaxNpyHeader)
    refuse_npy(fmt::format("its header has {} bytes; at most {} are allowed", length, kMaxNpyHeader));
  if (place.data > file_size)
    refuse_npy(fmt::format("its header of {} bytes is longer than the file of {}", length, file_size));
  return place;
}

}  // namespace

NpyHeader parse_npy_header(ByteSpan head, std::uint64_t file_size) {
  const Place place = places(head, file_size);
  if (head.size() < place.data) refuse_npy("it ends within its header");
  const auto* text = reinterpret_cast<const char*>(head.data() + place.header);
  NpyHeader header;
  header.layout = npy_layout(LiteralReader({text, place.data - place.header}).read());
  header.data_offset = place.data;
  header.file_size = file_size;
  if (header.layout.nbytes() > file_size - place.data)
    refuse_npy(fmt::format("{} needs {} bytes of data and the file has {}: it is cut off",
                           header.layout.str(), header.layout.nbytes(), file_size - place.data));
  return header;
}

NpyHeader read_npy_header(const Fd& file) {
  const std::uint64_t size = file_size(file);
  Bytes head(std::min<std::uint64_t>(size, kBeforeLength + 4));
  read_exactly(file, head, 0);
  const Place place = places(head, size);
  head.resize(place.data);
  read_exactly(file, head, 0);
  return parse_npy_header(head, size);
}

}  // namespace onecopy
