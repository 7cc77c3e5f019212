// SPDX-License-Identifier: Apache-2.0
#include "report_drawings.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <map>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "text.h"

namespace onecopy::cli {
namespace {

constexpr std::size_t kMaxLines = 6;
constexpr std::size_t kMaxBoxes = 24;
constexpr std::array<std::string_view, kMaxLines> kColours{"#3b6ea8", "#c2742e", "#4f8f56",
                                                           "#9a5ba5", "#b3484f", "#5f7f8c"};

struct Point {
  double seconds = 0;
  std::uint64_t bytes = 0;
};
using Line = std::vector<Point>;

std::uint64_t sum_of(const Moment& moment) {
  std::uint64_t sum = 0;
  for (const auto& [pid, bytes] : moment.memory) sum += bytes;
  return sum;
}

Line line_of(const std::vector<Moment>& past, int pid) {
  Line line;
  for (const Moment& moment : past)
    if (const auto at = moment.memory.find(pid); at != moment.memory.end())
      line.push_back({moment.seconds, at->second});
  return line;
}

/// Returns the pids with most memory at any moment, the largest first.
std::vector<int> largest(const std::vector<Moment>& past) {
  std::map<int, std::uint64_t> most;
  for (const Moment& moment : past)
    for (const auto& [pid, bytes] : moment.memory) most[pid] = std::max(most[pid], bytes);
  std::vector<std::pair<std::uint64_t, int>> order;
  for (const auto& [pid, bytes] : most)
    if (bytes != 0) order.emplace_back(bytes, pid);
  std::sort(order.rbegin(), order.rend());
  std::vector<int> pids;
  for (std::size_t i = 0; i < std::min(kMaxLines, order.size()); ++i) pids.push_back(order[i].second);
  return pids;
}

/// The place of the chart's numbers on the page.
struct Plot {
  static constexpr double kLeft = 90, kTop = 14, kWidth = 760, kHeight = 190;
  double seconds;
  double bytes;

  double x(double at) const { return kLeft + kWidth * (seconds > 0 ? at / seconds : 0); }
  double y(double of) const { return kTop + kHeight * (1 - of / bytes); }
};

std::string polyline(const Plot& plot, const Line& line, std::string_view attributes) {
  std::string points;
  for (const Point& point : line)
    points +=
        fmt::format("{:.1f},{:.1f} ", plot.x(point.seconds), plot.y(static_cast<double>(point.bytes)));
  if (line.size() == 1)  // makes a single point visible
    points += fmt::format("{:.1f},{:.1f}", plot.x(line[0].seconds) + 3,
                          plot.y(static_cast<double>(line[0].bytes)));
  return fmt::format("<polyline fill=\"none\" {} points=\"{}\"/>\n", attributes, points);
}

std::string axes(const Plot& plot) {
  std::string text;
  for (const double part : {0.0, 0.5, 1.0}) {
    const double y = plot.y(plot.bytes * part);
    text += fmt::format(
        "<line class=\"grid\" x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\"/>"
        "<text class=\"small\" text-anchor=\"end\" x=\"{3}\" y=\"{4:.1f}\">{5}</text>\n",
        Plot::kLeft, Plot::kLeft + Plot::kWidth, y, Plot::kLeft - 8, y + 4,
        format_bytes(static_cast<std::uint64_t>(plot.bytes * part)));
    text +=
        fmt::format("<text class=\"small\" text-anchor=\"middle\" x=\"{:.1f}\" y=\"{}\">{:.1f} s</text>\n",
                    plot.x(plot.seconds * part), Plot::kTop + Plot::kHeight + 18, plot.seconds * part);
  }
  return text;
}

std::string legend(std::size_t row, std::string_view colour, const std::string& name) {
  const std::size_t line = row / 4;
  const double x = Plot::kLeft + 185.0 * static_cast<double>(row % 4);
  const double y = Plot::kTop + Plot::kHeight + 40 + 18.0 * static_cast<double>(line);
  return fmt::format(
      "<rect x=\"{}\" y=\"{}\" width=\"12\" height=\"4\" fill=\"{}\"/>"
      "<text class=\"small\" x=\"{}\" y=\"{}\">{}</text>\n",
      x, y - 6, colour, x + 18, y, html(name));
}

// --- the map ----------------------------------------------------------------------------------------

struct Box {
  std::string title;
  std::string below;
};

constexpr double kRow = 52, kBoxWidth = 300, kBoxHeight = 40, kRightAt = 560, kMapWidth = 860;

std::string box(double x, std::size_t row, const Box& said) {
  const double y = 4 + kRow * static_cast<double>(row);
  return fmt::format(
      "<rect class=\"box\" x=\"{0}\" y=\"{1}\" width=\"{2}\" height=\"{3}\" rx=\"6\"/>"
      "<text x=\"{4}\" y=\"{5}\">{6}</text><text class=\"small\" x=\"{4}\" y=\"{7}\">{8}</text>\n",
      x, y, kBoxWidth, kBoxHeight, x + 12, y + 17, html(said.title), y + 32, html(said.below));
}

std::string line_between(std::size_t from, std::size_t to, std::uint64_t claims) {
  const double y1 = 4 + kRow * static_cast<double>(from) + kBoxHeight / 2;
  const double y2 = 4 + kRow * static_cast<double>(to) + kBoxHeight / 2;
  const double width = 1 + std::min(5.0, std::log2(1 + static_cast<double>(claims)) / 2);
  const double middle = (kBoxWidth + kRightAt) / 2;
  return fmt::format(
      "<path class=\"claim\" stroke-width=\"{0:.1f}\" d=\"M{1} {2} C{3} {2} {3} {4} {5} {4}\">"
      "<title>{6}</title></path>\n",
      width, kBoxWidth, y1, middle, y2, kRightAt, plural(claims, "block"));
}

}  // namespace

std::string memory_chart(const std::vector<Moment>& past) {
  Line all;
  std::uint64_t most = 1;
  for (const Moment& moment : past) {
    all.push_back({moment.seconds, sum_of(moment)});
    most = std::max(most, all.back().bytes);
  }
  const Plot plot{past.back().seconds, static_cast<double>(most)};
  const std::vector<int> pids = largest(past);
  std::string text =
      fmt::format("<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"memory over time\">\n", 880, 270) +
      axes(plot);
  text += polyline(plot, all, "class=\"sum\" stroke-width=\"2\" stroke-dasharray=\"5 4\"");
  for (std::size_t i = 0; i < pids.size(); ++i) {
    text += polyline(plot, line_of(past, pids[i]),
                     fmt::format("stroke=\"{}\" stroke-width=\"2\"", kColours[i]));
    text += legend(i + 1, kColours[i], fmt::format("process {}", pids[i]));
  }
  return text + legend(0, "currentColor", "all") + "</svg>\n";
}

std::string borrowing_map(const Look& look) {
  std::map<int, std::size_t> right;  // the row of each borrower, by its pid
  std::string lines, boxes;
  std::size_t owners = 0, hidden = 0;
  for (const ListedOwner& owner : look.owners) {
    if (owner.info.borrowers.empty()) continue;
    if (owners == kMaxBoxes) {
      ++hidden;
      continue;
    }
    boxes += box(0, owners,
                 {fmt::format("{} {}", owner.info.pid, shorten(owner.info.name, 28)),
                  fmt::format("{} in {}", format_bytes(owner.info.stats.bytes_shared),
                              plural(owner.info.stats.live_blocks, "block"))});
    for (const BorrowerInfo& borrower : owner.info.borrowers) {
      const auto [at, is_new] = right.try_emplace(borrower.pid, right.size());
      if (at->second >= kMaxBoxes) continue;
      lines += line_between(owners, at->second, borrower.claims);
      if (is_new)
        boxes += box(kRightAt, at->second,
                     {fmt::format("{} {}", borrower.pid, shorten(escaped(borrower.name), 28)),
                      fmt::format("has {}", plural(borrower.claims, "block"))});
    }
    ++owners;
  }
  if (owners == 0) return "";
  if (right.size() > kMaxBoxes) hidden += right.size() - kMaxBoxes;
  const double height = kRow * static_cast<double>(std::max(owners, std::min(right.size(), kMaxBoxes))) + 8;
  return fmt::format("<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"who holds what\">\n{}{}</svg>\n",
                     kMapWidth, height, lines, boxes) +
         (hidden == 0 ? ""
                      : fmt::format("<p>{} more in the tables only.</p>\n", plural(hidden, "process")));
}

}  // namespace onecopy::cli
