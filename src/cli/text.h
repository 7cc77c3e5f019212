// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace onecopy::cli {

/// "0 B", "12.3 KiB", "1.25 GiB".
std::string format_bytes(std::uint64_t bytes);
/// "85 ns", "1.2 µs", "38.4 ms", "2.1 s".
std::string format_duration(std::chrono::nanoseconds duration);
/// "3 s", "4 min", "2 h".
std::string format_age(std::chrono::nanoseconds age);
/// "[3, 4]"; "scalar" for 0-d.
std::string format_shape(std::span<const std::int64_t> shape);
/// "1 block", "3 blocks".
std::string plural(std::uint64_t count, std::string_view noun);
/// At most `width` columns: the middle gives way to "…".
std::string shorten(std::string_view text, std::size_t width);

/// Orders texts as people do: numbers in them by their value, so that "layers.2" comes before "layers.10".
bool natural_less(std::string_view a, std::string_view b);

/// Fit for a terminal: control characters, and bytes that are no UTF-8, become "\\x1b".
std::string escaped(std::string_view text);

/// The text in lines of at most `width` columns, broken between words; a longer word has a line of its own.
std::vector<std::string> wrap(std::string_view text, std::size_t width);

/// Flushes stdout: before a command waits, and so that it does not go on without a reader. Throws std::system_error
/// if the output cannot be written.
void flush_output();

/// Is the descriptor a terminal that a person looks at?
bool is_terminal(int fd);
/// Columns and rows of a terminal.
struct TerminalSize {
  std::size_t columns = 0;
  std::size_t rows = 0;
};
/// Of stdout; empty if it is no terminal, or one without a known size.
std::optional<TerminalSize> terminal_size();
/// Columns that a line on stdout may have: the terminal's, else as many as it takes.
std::size_t line_width();

/// `text` in bold, green or red if stdout is a terminal and NO_COLOR is not set.
std::string bold(std::string_view text);
std::string green(std::string_view text);
std::string red(std::string_view text);
std::string dim(std::string_view text);

enum class Align { left, right };

inline constexpr std::size_t kAnyWidth = std::numeric_limits<std::size_t>::max();

/// Rows of text in columns that are as wide as they must be. Thread safety: none.
class Table {
 public:
  struct Column {
    std::string title;
    Align align = Align::left;
    bool shrinks =
        false;  ///< if the lines would be too long, its cells lose their middle; for one column at most
  };
  explicit Table(std::vector<Column> columns, std::string indent = "");

  /// REQUIRES: as many cells as there are columns.
  void add(std::vector<std::string> cells);
  bool empty() const noexcept { return rows_.empty(); }
  /// Title line and rows, each ended by a newline; no trailing blanks. If a column shrinks, lines have at most
  /// `width` columns, as far as the others leave kLeastShrunk for it.
  std::string str(std::size_t width = kAnyWidth) const;

 private:
  static constexpr std::size_t kLeastShrunk = 12;

  std::vector<std::size_t> widths_within(std::size_t width) const;
  std::string line(const std::vector<std::string>& cells, const std::vector<std::size_t>& widths) const;

  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
  std::string indent_;
};

/// One line on stderr that shows the progress of a transfer. Silent if stderr is not a terminal. Thread safety: none.
class ProgressBar {
 public:
  explicit ProgressBar(std::string label);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void show(std::uint64_t done, std::uint64_t total);
  /// Removes the line again.
  void clear();

 private:
  std::string label_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point last_{};
  bool visible_ = false;
  bool terminal_;
};

}  // namespace onecopy::cli
