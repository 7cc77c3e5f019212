// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace onecopy::cli {

/// Returns e.g. "0 B", "12.3 KiB", "1.25 GiB".
std::string format_bytes(std::uint64_t bytes);
/// Returns e.g. "85 ns", "1.2 µs", "38.4 ms", "2.1 s".
std::string format_duration(std::chrono::nanoseconds duration);
/// Returns e.g. "3 s", "4 min", "2 h".
std::string format_age(std::chrono::nanoseconds age);
/// Returns e.g. "[3, 4]", or "scalar" for 0-d.
std::string format_shape(std::span<const std::int64_t> shape);
/// Returns e.g. "1 block", "3 blocks", "2 processes".
std::string plural(std::uint64_t count, std::string_view noun);
/// Shortens the text to at most `width` columns: "…" replaces the middle.
std::string shorten(std::string_view text, std::size_t width);

/// Escapes the text for a terminal: control characters, and bytes that are not UTF-8, become "\\x1b".
std::string escaped(std::string_view text);

/// Breaks the text between words into lines of at most `width` columns; a longer word gets a line of its own. Words
/// between two backquotes, such as a command to paste, stay together.
std::vector<std::string> wrap(std::string_view text, std::size_t width);

/// Flushes stdout: before a command waits, and so that a command without a reader ends. Throws std::system_error if the
/// output cannot be written.
void flush_output();

/// Returns whether the descriptor is a terminal.
bool is_terminal(int fd);
/// The columns and rows of a terminal.
struct TerminalSize {
  std::size_t columns = 0;
  std::size_t rows = 0;
};
/// Returns the size of the descriptor's terminal; empty if it is not a terminal, or the size is unknown.
std::optional<TerminalSize> terminal_size(int fd = STDOUT_FILENO);
/// Returns the max length of a line on stdout: the terminal's columns, or kAnyWidth.
std::size_t line_width();
/// Returns the max length of a line of prose on stdout: the terminal's columns, up to 100, or 80 in a pipe.
std::size_t prose_width();
/// Returns the help of a command with its long lines broken at `width`, each part below the start of its description.
/// Lines that show a command stay whole.
std::string wrap_help(const std::string& help, std::size_t width);

/// Returns `text` in bold, green or red if stdout is a terminal and NO_COLOR is not set.
std::string bold(std::string_view text);
std::string green(std::string_view text);
std::string red(std::string_view text);
std::string dim(std::string_view text);

enum class Align { left, right };

inline constexpr std::size_t kAnyWidth = std::numeric_limits<std::size_t>::max();

/// A table of text whose columns are as wide as necessary. Thread safety: none.
class Table {
 public:
  struct Column {
    std::string title;
    Align align = Align::left;
    /// Says that cells lose their middle if lines would be too long; for at most one column.
    bool shrinks = false;
  };
  explicit Table(std::vector<Column> columns, std::string indent = "");

  /// Adds a row. REQUIRES: as many cells as there are columns.
  void add(std::vector<std::string> cells);
  bool empty() const noexcept { return rows_.empty(); }
  /// Returns the title line and the rows, each ended by a newline, without trailing blanks. If a column shrinks, lines
  /// have at most `width` columns, as far as the other columns leave kLeastShrunk for it.
  std::string str(std::size_t width = kAnyWidth) const;

 private:
  static constexpr std::size_t kLeastShrunk = 12;

  std::vector<std::size_t> widths_within(std::size_t width) const;
  std::string line(const std::vector<std::string>& cells, const std::vector<std::size_t>& widths) const;

  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
  std::string indent_;
};

/// A line on stderr that shows the progress of a transfer. Silent if stderr is not a terminal. Thread safety: none.
class ProgressBar {
 public:
  explicit ProgressBar(std::string label);
  ~ProgressBar();
  ProgressBar& operator=(ProgressBar&&) = delete;

  void show(std::uint64_t done, std::uint64_t total);
  /// Removes the line.
  void clear();

 private:
  std::string label_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point last_{};
  bool visible_ = false;
  bool terminal_;
};

}  // namespace onecopy::cli
