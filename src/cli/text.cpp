// SPDX-License-Identifier: Apache-2.0
#include "text.h"

#include <sys/ioctl.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <system_error>

#include <fmt/ranges.h>

#include "core/utf8.h"

namespace onecopy::cli {
namespace {

/// Returns the columns of the text on a terminal: colour sequences take none, and all characters used here take one.
std::size_t width_of(std::string_view text) {
  std::size_t width = 0;
  bool in_escape = false;
  for (char c : text) {
    if (c == '\033') in_escape = true;
    else if (in_escape) in_escape = c != 'm';
    else if ((static_cast<unsigned char>(c) & 0xc0) != 0x80) ++width;
  }
  return width;
}

std::string paint(const char* code, std::string_view text) {
  static const bool colour = is_terminal(STDOUT_FILENO) && std::getenv("NO_COLOR") == nullptr;
  return colour ? fmt::format("\033[{}m{}\033[0m", code, text) : std::string(text);
}

/// Returns the start of the UTF-8 character that contains byte `at`.
std::size_t character_start(std::string_view text, std::size_t at) {
  while (at > 0 && at < text.size() && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80) --at;
  return at;
}

/// Returns the bytes of the text's first character; 0 for a control character and for bytes that are not UTF-8.
std::size_t printable_at(std::string_view text) {
  const auto first = static_cast<unsigned char>(text[0]);
  if (first < 0x80) return first >= 0x20 && first != 0x7f;
  const std::size_t bytes = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  const bool is_control = first == 0xc2 && text.size() > 1 && static_cast<unsigned char>(text[1]) < 0xa0;
  return bytes <= text.size() && !is_control && is_utf8(text.substr(0, bytes)) ? bytes : 0;
}

/// Returns the place of the first blank that is not between two backquotes.
std::size_t end_of_word(std::string_view text) {
  const std::size_t end = text.find(' ');
  const std::size_t quote = text.find('`');
  if (quote == std::string_view::npos || quote > end) return end;
  return text.find(' ', text.find('`', quote + 1));
}

/// Returns the column at which the continuation of a line of help starts: that of its description, or of its text.
std::size_t hanging_indent(std::string_view line) {
  const std::size_t start = line.find_first_not_of(' ');
  const std::size_t gap = line.find("  ", start);
  const std::size_t description = gap == std::string_view::npos ? gap : line.find_first_not_of(' ', gap);
  return description == std::string_view::npos ? start : description;
}

bool is_example(std::string_view line) {
  return line.starts_with("  onecopy ") && line.find("  ", 2) == std::string_view::npos;
}

/// Appends a line of help in parts of at most `width` columns.
void append_wrapped(std::string& out, const std::string& line, std::size_t width) {
  if (width_of(line) <= width || is_example(line)) {
    out += line + "\n";
    return;
  }
  const std::size_t indent = hanging_indent(line);
  std::string before = line.substr(0, indent);
  for (const std::string& part :
       wrap(std::string_view(line).substr(indent), width - std::min(indent, width / 2))) {
    out += before + part + "\n";
    before.assign(indent, ' ');
  }
}

}  // namespace

std::string wrap_help(const std::string& help, std::size_t width) {
  std::vector<std::string> lines;
  std::istringstream text(help);
  for (std::string line; std::getline(text, line);) {
    const bool is_rest = !lines.empty() && width_of(lines.back()) > width && !line.empty() &&
                         line[0] != ' ' && lines.back()[0] != ' ';
    if (is_rest) lines.back() += " " + line;
    else lines.push_back(line);
  }
  std::string out;
  for (const std::string& line : lines) append_wrapped(out, line, width);
  return out;
}

std::string format_bytes(std::uint64_t bytes) {
  constexpr std::array kUnits{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; value >= 1023.95 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string format_duration(std::chrono::nanoseconds duration) {
  const double ns = static_cast<double>(duration.count());
  if (ns < 1e3) return fmt::format("{:.0f} ns", ns);
  if (ns < 1e6) return fmt::format("{:.{}f} µs", ns / 1e3, ns < 1e4 ? 2 : ns < 1e5 ? 1 : 0);
  if (ns < 1e9) return fmt::format("{:.1f} ms", ns / 1e6);
  return fmt::format("{:.1f} s", ns / 1e9);
}

std::string format_age(std::chrono::nanoseconds age) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(age).count();
  constexpr std::int64_t kMinute = 60;
  constexpr std::int64_t kHour = 3600;
  if (seconds < 2 * kMinute) return fmt::format("{} s", seconds);
  if (seconds < 2 * kHour) return fmt::format("{} min", seconds / kMinute);
  return fmt::format("{} h", seconds / kHour);
}

std::string format_shape(std::span<const std::int64_t> shape) {
  return shape.empty() ? "scalar" : fmt::format("[{}]", fmt::join(shape, ", "));
}

std::string plural(std::uint64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : noun.ends_with('s') ? "es" : "s");
}

std::string shorten(std::string_view text, std::size_t width) {
  if (width_of(text) <= width || width < 3) return std::string(text);
  const std::size_t head = character_start(text, (width - 1) / 2);
  const std::size_t tail = character_start(text, text.size() - (width - 1 - (width - 1) / 2));
  return fmt::format("{}…{}", text.substr(0, head), text.substr(tail));
}

std::string escaped(std::string_view text) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t bytes = printable_at(text.substr(at));
    if (bytes == 0) out += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[at]));
    else out += text.substr(at, bytes);
    at += std::max<std::size_t>(bytes, 1);
  }
  return out;
}

std::vector<std::string> wrap(std::string_view text, std::size_t width) {
  std::vector<std::string> lines(1);
  while (!text.empty()) {
    const std::string_view word = text.substr(0, end_of_word(text));
    if (!lines.back().empty() && width_of(lines.back()) + 1 + width_of(word) > width) lines.emplace_back();
    if (!lines.back().empty()) lines.back() += ' ';
    lines.back() += word;
    text.remove_prefix(std::min(text.size(), word.size() + 1));
  }
  return lines;
}

void flush_output() {
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)
    throw std::system_error(errno, std::generic_category(), "cannot write to stdout");
}

bool is_terminal(int fd) { return ::isatty(fd) == 1; }

std::optional<TerminalSize> terminal_size(int fd) {
  winsize size{};
  if (!is_terminal(fd) || ::ioctl(fd, TIOCGWINSZ, &size) != 0) return {};
  if (size.ws_col == 0 || size.ws_row == 0) return {};
  return TerminalSize{size.ws_col, size.ws_row};
}

std::size_t line_width() {
  const auto size = terminal_size();
  return size ? size->columns : kAnyWidth;
}

std::size_t prose_width() {
  constexpr std::size_t kNarrow = 40;
  constexpr std::size_t kWide = 100;
  const auto size = terminal_size();
  return size ? std::clamp(size->columns, kNarrow, kWide) : 80;
}

std::string bold(std::string_view text) { return paint("1", text); }
std::string green(std::string_view text) { return paint("32", text); }
std::string red(std::string_view text) { return paint("31", text); }
std::string dim(std::string_view text) { return paint("2", text); }

Table::Table(std::vector<Column> columns, std::string indent)
    : columns_(std::move(columns)), indent_(std::move(indent)) {}

void Table::add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }

std::string Table::str(std::size_t width) const {
  std::vector<std::string> titles;
  titles.reserve(columns_.size());
  for (const Column& column : columns_) titles.push_back(bold(column.title));
  const std::vector<std::size_t> widths = widths_within(width);
  std::string out = line(titles, widths);
  for (auto row : rows_) {
    for (std::size_t i = 0; i < row.size(); ++i)
      if (columns_[i].shrinks) row[i] = shorten(row[i], widths[i]);
    out += line(row, widths);
  }
  return out;
}

std::vector<std::size_t> Table::widths_within(std::size_t width) const {
  std::vector<std::size_t> widths;
  widths.reserve(columns_.size());
  for (const Column& column : columns_) widths.push_back(width_of(column.title));
  for (const auto& row : rows_)
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width_of(row[i]));
  std::size_t whole = indent_.size() + 2 * (widths.size() - 1);
  for (const std::size_t column : widths) whole += column;
  if (whole <= width) return widths;
  for (std::size_t i = 0; i < widths.size(); ++i)
    if (columns_[i].shrinks)
      widths[i] -= std::min(whole - width, widths[i] - std::min(widths[i], kLeastShrunk));
  return widths;
}

std::string Table::line(const std::vector<std::string>& cells,
                        const std::vector<std::size_t>& widths) const {
  std::string out = indent_;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    if (i > 0) out += "  ";
    const std::string blanks(widths[i] - width_of(cells[i]), ' ');
    out += columns_[i].align == Align::left ? cells[i] + blanks : blanks + cells[i];
  }
  out.erase(out.find_last_not_of(' ') + 1);
  return out + "\n";
}

namespace {

/// Returns the line with a bar of the columns that the terminal leaves for it. A longer line would scroll at each update.
std::string bar_line(const std::string& label, double part, const std::string& numbers) {
  constexpr std::size_t kMaxBar = 32;
  const auto size = terminal_size(STDERR_FILENO);
  const std::size_t columns = size ? size->columns : 80;
  const std::size_t others =
      width_of(label) + width_of(numbers) + 5;  // blanks, brackets, and the last column
  if (others >= columns) return shorten(numbers, columns - 1);
  const std::size_t width = std::min(kMaxBar, columns - others);
  const auto filled = std::min(width, static_cast<std::size_t>(part * static_cast<double>(width)));
  return fmt::format("{} [{}{}] {}", label, std::string(filled, '#'), std::string(width - filled, '.'),
                     numbers);
}

}  // namespace

ProgressBar::ProgressBar(std::string label)
    : label_(std::move(label)), terminal_(is_terminal(STDERR_FILENO)) {}

ProgressBar::~ProgressBar() { clear(); }

void ProgressBar::show(std::uint64_t done, std::uint64_t total) {
  const auto now = std::chrono::steady_clock::now();
  if (!terminal_ || (done < total && now - last_ < std::chrono::milliseconds(50))) return;
  last_ = now;
  visible_ = true;
  const double part = total == 0 ? 1.0 : static_cast<double>(done) / static_cast<double>(total);
  const double seconds = std::chrono::duration<double>(now - start_).count();
  const double rate = seconds > 0 ? static_cast<double>(done) / seconds : 0;
  const std::string numbers = fmt::format("{} of {}, {}/s", format_bytes(done), format_bytes(total),
                                          format_bytes(static_cast<std::uint64_t>(rate)));
  fmt::print(stderr, "\r{}\033[K", bar_line(label_, part, numbers));
  std::fflush(stderr);
}

void ProgressBar::clear() {
  if (!visible_) return;
  visible_ = false;
  fmt::print(stderr, "\r\033[K");
  std::fflush(stderr);
}

}  // namespace onecopy::cli
