// SPDX-License-Identifier: Apache-2.0
#include "report_page.h"

#include <cstdint>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "report_drawings.h"
#include "store_table.h"
#include "text.h"

namespace onecopy::cli {
namespace {

constexpr std::string_view kStyle = R"(
:root { color-scheme: light dark; --line: #8884; --soft: #8882; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: 0; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
p.about { opacity: .75; margin-top: .2rem; }
table { border-collapse: collapse; width: 100%; } th { font-weight: 600; text-align: left; }
th, td { border-bottom: 1px solid var(--line); padding: .3rem .6rem; vertical-align: top; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
td.c { font-family: ui-monospace, monospace; font-size: .85em; overflow-wrap: anywhere; }
td.c div { max-height: 5.2em; overflow: auto; }
.tiles { display: flex; flex-wrap: wrap; gap: .8rem; margin: 1.2rem 0; }
.tile { background: var(--soft); border-radius: 8px; padding: .6rem 1rem; min-width: 7rem; }
.tile b { display: block; font-size: 1.3rem; }
svg { width: 100%; height: auto; font: 13px system-ui, sans-serif; } svg text { fill: currentColor; }
svg .small { font-size: 11px; opacity: .75; } .grid { stroke: var(--line); } .sum { stroke: currentColor; }
.box { fill: var(--soft); stroke: var(--line); } .claim { fill: none; stroke: #3b6ea8; opacity: .7; }
)";

std::string number(const std::string& text) { return fmt::format("<td class=\"n\">{}</td>", html(text)); }
std::string number(std::uint64_t value) { return number(fmt::format("{}", value)); }
std::string cell(std::string_view text) { return fmt::format("<td>{}</td>", html(text)); }
std::string line(const std::string& cells) { return fmt::format("<tr>{}</tr>\n", cells); }

/// Returns a table. Titles that begin with "#" belong to columns of numbers.
std::string table_of(const std::vector<std::string_view>& titles, const std::string& rows) {
  std::string head;
  for (const std::string_view title : titles)
    head += title.starts_with('#') ? fmt::format("<th class=\"n\">{}</th>", title.substr(1))
                                   : fmt::format("<th>{}</th>", title);
  return fmt::format("<table>\n<thead><tr>{}</tr></thead>\n<tbody>\n{}</tbody>\n</table>\n", head, rows);
}

std::string section(std::string_view title, std::string_view said, const std::string& content) {
  return fmt::format("<h2>{}</h2>\n<p class=\"about\">{}</p>\n{}", title, said, content);
}

std::string tile(const std::string& value, std::string_view name) {
  return fmt::format("<div class=\"tile\"><b>{}</b>{}</div>\n", html(value), name);
}

std::string tiles(const Look& look) {
  std::uint64_t memory = 0, blocks = 0, transit = 0, limbo = 0;
  std::set<int> borrowers;
  for (const ListedOwner& owner : look.owners) {
    memory += owner.info.stats.bytes_shared;
    blocks += owner.info.stats.live_blocks;
    transit += owner.info.stats.in_transit;
    limbo += owner.info.stats.limbo;
    for (const BorrowerInfo& borrower : owner.info.borrowers) borrowers.insert(borrower.pid);
  }
  return "<div class=\"tiles\">\n" + tile(format_bytes(memory), "memory") +
         tile(fmt::format("{}", look.owners.size()), "processes") +
         tile(fmt::format("{}", borrowers.size()), "borrowers") +
         tile(fmt::format("{}", blocks), "blocks") + tile(fmt::format("{}", transit), "in transit") +
         tile(fmt::format("{}", limbo), "in limbo") + "</div>\n";
}

std::string owners(const Look& look) {
  std::string rows;
  for (const ListedOwner& owner : look.owners) {
    const Stats& stats = owner.info.stats;
    rows += line(number(static_cast<std::uint64_t>(owner.info.pid)) +
                 number(format_bytes(stats.bytes_shared)) + number(format_bytes(stats.live_bytes)) +
                 number(stats.live_blocks) + number(stats.in_transit) + number(stats.limbo) +
                 number(owner.info.borrowers.size()) + number(stats.leases) + number(stats.descriptors) +
                 fmt::format("<td class=\"c\"><div>{}</div></td>", html(owner.command)));
  }
  return table_of({"#pid", "#memory", "#bytes", "#blocks", "#in transit", "#limbo", "#borrowers", "#leases",
                   "#descriptors", "command"},
                  rows);
}

std::string segments(const Look& look) {
  std::string rows;
  for (const ListedOwner& owner : look.owners)
    for (const DeviceUse& use : owner.info.devices)
      rows += line(number(static_cast<std::uint64_t>(owner.info.pid)) + cell(use.device) +
                   number(use.segments) + number(format_bytes(use.bytes)) + cell(use.uuid));
  return table_of({"#pid", "device", "#segments", "#memory", "UUID"}, rows);
}

std::string borrowers(const Look& look) {
  std::string rows;
  for (const ListedOwner& owner : look.owners)
    for (const BorrowerInfo& borrower : owner.info.borrowers)
      rows += line(number(static_cast<std::uint64_t>(owner.info.pid)) +
                   number(static_cast<std::uint64_t>(borrower.pid)) + number(borrower.claims) +
                   cell(escaped(borrower.name)));
  return table_of({"#owner", "#borrower", "#blocks", "borrower's name"}, rows);
}

std::string waiting(const Look& look) {
  std::string rows;
  for (const ListedOwner& owner : look.owners)
    for (const auto& [where, blocks] : by_place(owner.info.in_transit))
      rows += line(number(static_cast<std::uint64_t>(owner.info.pid)) + cell(escaped(where)) +
                   number(blocks.blocks) + number(ages(blocks)));
  return rows.empty() ? "<p>Nothing is in transit.</p>\n"
                      : table_of({"#owner", "where", "#blocks", "#for"}, rows);
}

std::string stored(const Look& look) {
  std::string rows;
  for (const store::ObjectInfo& object : look.objects)
    for (const store::VersionInfo& v : object.versions)
      rows += line(cell(escaped(object.name)) +
                   number(fmt::format("{}{}", v.number, v.number == object.current ? "*" : "")) +
                   number(format_bytes(v.bytes)) + cell(v.device) + number(std::uint64_t{v.readers}) +
                   number(static_cast<std::uint64_t>(v.publisher)) + number(age_of(v)));
  return rows.empty()
             ? ""
             : section(
                   "Store", "Versions of named objects; * marks the current one of each.",
                   table_of({"object", "#version", "#bytes", "device", "#readers", "#publisher", "#age"},
                            rows));
}

std::string silent(const Look& look) {
  std::string rows;
  for (const SilentOwner& owner : look.silent)
    rows += line(number(static_cast<std::uint64_t>(owner.pid)) + cell(escaped(owner.why)));
  return rows.empty()
             ? ""
             : section("Not listed", "Processes that did not answer.", table_of({"#pid", "why"}, rows));
}

std::string map_section(const Look& look) {
  const std::string drawn = borrowing_map(look);
  return section(
      "Who holds what", "Owners to the left, those that have blocks of them open to the right.",
      drawn.empty() ? "<p>No process has memory of another open.</p>\n" : drawn + borrowers(look));
}

}  // namespace

std::string html(std::string_view text) {
  std::string safe;
  for (const char letter : text) switch (letter) {
      case '&': safe += "&amp;"; break;
      case '<': safe += "&lt;"; break;
      case '>': safe += "&gt;"; break;
      case '"': safe += "&quot;"; break;
      case '\'': safe += "&#39;"; break;
      default: safe += letter;
    }
  return safe;
}

std::string report_page(const Look& last, const std::vector<Moment>& past, const std::string& title) {
  std::string page = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<title>onecopy: {0}</title>\n<style>{1}</style>\n</head>\n<body>\n<h1>onecopy</h1>\n"
      "<p class=\"about\">{0}. Watched for {2:.1f} s. All processes of this user.</p>\n",
      html(title), kStyle, last.seconds);
  page += tiles(last);
  page += section("Memory over time", "Physical memory reserved in the segments of each owner.",
                  memory_chart(past));
  page +=
      section("Owners",
              "bytes are alive in memory; limbo is freed and still borrowed; leases are blocks of others.",
              last.owners.empty() ? "<p>No process of this user shares memory.</p>\n" : owners(last));
  page += map_section(last);
  page += section("Queues and handles", "Blocks that are kept for receivers which have not taken them yet.",
                  waiting(last));
  page += section("Segments", "Memory that is exported whole, by device.", segments(last));
  return page + stored(last) + silent(last) + "</body>\n</html>\n";
}

}  // namespace onecopy::cli
