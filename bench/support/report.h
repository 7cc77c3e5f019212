// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "support/machine.h"

namespace onecopy::bench {

/// The bound of a figure: `value` compared with `bound`.
struct Bound {
  double value = 0;
  double limit = 0;
  bool at_least = false;

  bool holds() const { return at_least ? value >= limit : value <= limit; }
};

inline Bound at_most(double value, double limit) { return {value, limit, false}; }
inline Bound at_least(double value, double limit) { return {value, limit, true}; }

/// A measured number.
struct Figure {
  std::string what;
  double value = 0;
  std::string unit;             ///< ns, ms, /s, bytes, ...
  std::optional<double> ratio;  ///< the ratio to the row `to`
  std::string to;
  std::optional<Bound> bound;
};

/// A promise and its figures.
class Row {
 public:
  Row(std::string what, std::string promised) : title(std::move(what)), promise(std::move(promised)) {}

  void add(const std::string& what, double value, const std::string& unit) {
    figures.push_back({what, value, unit, {}, {}, {}});
  }
  void add(const std::string& what, double value, const std::string& unit, double ratio,
           const std::string& to) {
    figures.push_back({what, value, unit, ratio, to, {}});
  }
  /// Adds a figure whose ratio must be at most `limit`.
  void judge(const std::string& what, double value, const std::string& unit, double ratio,
             const std::string& to, double limit) {
    figures.push_back({what, value, unit, ratio, to, at_most(ratio, limit)});
  }
  void judge(const std::string& what, double value, const std::string& unit, Bound bound) {
    figures.push_back({what, value, unit, {}, {}, bound});
  }
  void note(const std::string& text) { notes.push_back(text); }

  std::string title;
  std::string promise;
  std::vector<Figure> figures;
  std::vector<std::string> notes;
};

/// Returns a text such as "312 ns", "4.10 µs" or "3.20 million/s".
std::string format_value(double value, const std::string& unit);
/// Returns a row as a block of text for terminals.
std::string to_text(const Row& row);
/// Writes <directory>/<date>-<kind of machine>.json, of which bench/page.py makes docs/benchmarks.md, and returns its
/// path.
std::string write_results(const std::string& directory, const Machine& machine,
                          const std::vector<Row>& rows);

}  // namespace onecopy::bench
