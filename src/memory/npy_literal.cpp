// SPDX-License-Identifier: Apache-2.0
#include "npy_literal.h"

#include <fmt/format.h>

#include <charconv>

#include "onecopy/core/error.h"
#include "onecopy/core/layout.h"

namespace onecopy {

void refuse_npy(const std::string& why) {
  throw Error(ErrorCode::bad_file, "this is not a valid .npy file: " + why);
}

namespace {

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

}  // namespace

NpyFields parse_npy_literal(std::string_view text) { return LiteralReader(text).read(); }

}  // namespace onecopy
