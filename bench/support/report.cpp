// SPDX-License-Identifier: Apache-2.0
#include "support/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "onecopy/core/error.h"

namespace onecopy::bench {
namespace {

using Json = nlohmann::json;

std::string scaled(double value, double factor, const char* unit) {
  const double v = value / factor;
  return fmt::format("{:.{}f} {}", v, v < 10 ? 2 : v < 100 ? 1 : 0, unit);
}

std::string verdict(const Figure& figure) {
  if (!figure.bound) return {};
  return figure.bound->holds() ? "pass" : "MISS";
}

/// Returns a text such as "must be <= 5.00", in the unit of the value unless it is a ratio.
std::string demand(const Figure& figure) {
  if (!figure.bound) return {};
  const std::string limit = figure.ratio ? fmt::format("{:.2f} x", figure.bound->limit)
                                         : format_value(figure.bound->limit, figure.unit);
  return fmt::format("{} {}", figure.bound->at_least ? "\u2265" : "\u2264", limit);
}

std::string ratio(const Figure& figure) {
  return figure.ratio ? fmt::format("{:.2f} x {}", *figure.ratio, figure.to) : "";
}

std::string padded(const std::string& text, std::size_t width) {
  std::size_t columns = 0;  // the width of UTF-8 text, in which continuation bytes take no column
  for (const char c : text) columns += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return text + std::string(width > columns ? width - columns : 0, ' ');
}

Json to_json(const Row& row) {
  Json figures = Json::array();
  for (const Figure& f : row.figures) {
    Json figure{{"what", f.what}, {"value", f.value}, {"unit", f.unit}};
    if (f.ratio) figure.update({{"ratio", *f.ratio}, {"to", f.to}});
    if (f.bound)
      figure.update(
          {{f.bound->at_least ? "at_least" : "at_most", f.bound->limit}, {"pass", f.bound->holds()}});
    figures.push_back(std::move(figure));
  }
  return {{"title", row.title}, {"promise", row.promise}, {"figures", figures}, {"notes", row.notes}};
}

void write_json(const std::string& path, const Machine& machine, const std::vector<Row>& rows) {
  Json facts = Json::object();
  for (const auto& [name, value] : machine.facts) facts[name] = value;
  Json all = Json::array();
  for (const Row& row : rows) all.push_back(to_json(row));
  std::ofstream(path) << Json{{"date", machine.date}, {"machine", facts}, {"rows", all}}.dump(2) << '\n';
}

}  // namespace

std::string format_value(double value, const std::string& unit) {
  if (unit == "ns") {
    if (value < 1e3) return scaled(value, 1, "ns");
    if (value < 1e6) return scaled(value, 1e3, "\u00b5s");
    return value < 1e9 ? scaled(value, 1e6, "ms") : scaled(value, 1e9, "s");
  }
  if (unit == "/s") {
    if (value >= 1e6) return scaled(value, 1e6, "million/s");
    return value >= 1e3 ? scaled(value, 1e3, "thousand/s") : scaled(value, 1, "/s");
  }
  if (unit.empty()) return fmt::format("{:.0f}", value);
  return scaled(value, 1, unit.c_str());
}

std::string to_text(const Row& row) {
  std::size_t widest = 0;
  for (const Figure& f : row.figures) widest = std::max(widest, f.what.size());
  std::string text = fmt::format("{}\n  promise: {}\n", row.title, row.promise);
  for (const Figure& f : row.figures) {
    std::string line = fmt::format("  {}  {}  {}  {}  {}", padded(f.what, widest),
                                   padded(format_value(f.value, f.unit), 15), padded(ratio(f), 30),
                                   padded(demand(f), 15), verdict(f));
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  for (const std::string& note : row.notes) text += fmt::format("  ({})\n", note);
  return text;
}

std::string write_results(const std::string& directory, const Machine& machine,
                          const std::vector<Row>& rows) {
  std::filesystem::create_directories(directory);
  const std::string path = fmt::format("{}/{}-{}.json", directory, machine.date, machine.kind);
  write_json(path, machine, rows);
  return path;
}

}  // namespace onecopy::bench
