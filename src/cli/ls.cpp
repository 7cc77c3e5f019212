// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "onecopy/share/stats.h"
#include "output_format.h"
#include "text.h"

namespace onecopy::cli {
namespace {

std::string age_of(const TransitInfo& transit) {
  return format_age(std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::duration<double>(transit.age_seconds)));
}

void print_table(const std::vector<OwnerInfo>& owners) {
  if (owners.empty()) return fmt::print("No process of this user that answers shares memory.\n");
  constexpr auto kRight = Align::right;
  Table table({{"pid", kRight},
               {"program"},
               {"segments", kRight},
               {"blocks", kRight},
               {"bytes", kRight},
               {"memory", kRight},
               {"limbo", kRight},
               {"in transit", kRight},
               {"borrowers", kRight}});
  for (const OwnerInfo& owner : owners)
    table.add({fmt::format("{}", owner.pid), owner.name, fmt::format("{}", owner.stats.segments),
               fmt::format("{}", owner.stats.live_blocks), format_bytes(owner.stats.live_bytes),
               format_bytes(owner.stats.bytes_shared), fmt::format("{}", owner.stats.limbo),
               fmt::format("{}", owner.stats.in_transit), fmt::format("{}", owner.borrowers.size())});
  fmt::print("{}", table.str());
}

void print_details(const OwnerInfo& owner) {
  for (const DeviceUse& use : owner.devices)
    if (!use.uuid.empty())
      fmt::print("{}: {} on {}, {} ({})\n", owner.pid, plural(use.segments, "segment"), use.device,
                 format_bytes(use.bytes), use.uuid);
  for (const BorrowerInfo& borrower : owner.borrowers)
    fmt::print("{}: {} ({}) borrows {}\n", owner.pid, borrower.pid, borrower.name,
               plural(borrower.claims, "block"));
  for (const TransitInfo& transit : owner.in_transit)
    fmt::print("{}: {} in transit for {} ({})\n", owner.pid, plural(transit.blocks, "block"),
               age_of(transit), transit.where);
  if (owner.stats.unkept != 0)
    fmt::print("{}: {} that it put into queues end with their process (the queues do not keep them)\n",
               owner.pid, plural(owner.stats.unkept, "segment"));
  if (owner.stats.host_waits != 0)
    fmt::print("{}: its host waited for streams {} (its devices have no stream memory operations)\n",
               owner.pid, plural(owner.stats.host_waits, "time"));
}

nlohmann::json as_json(const OwnerInfo& owner) {
  nlohmann::json devices = nlohmann::json::array();
  for (const DeviceUse& use : owner.devices)
    devices.push_back(
        {{"device", use.device}, {"uuid", use.uuid}, {"segments", use.segments}, {"bytes", use.bytes}});
  nlohmann::json borrowers = nlohmann::json::array();
  for (const BorrowerInfo& borrower : owner.borrowers)
    borrowers.push_back({{"pid", borrower.pid}, {"name", borrower.name}, {"claims", borrower.claims}});
  nlohmann::json transits = nlohmann::json::array();
  for (const TransitInfo& transit : owner.in_transit)
    transits.push_back(
        {{"blocks", transit.blocks}, {"age_seconds", transit.age_seconds}, {"where", transit.where}});
  const Stats& stats = owner.stats;
  return {{"pid", owner.pid},
          {"name", owner.name},
          {"socket", owner.socket},
          {"segments", stats.segments},
          {"blocks", stats.live_blocks},
          {"bytes", stats.live_bytes},
          {"memory_bytes", stats.bytes_shared},
          {"limbo", stats.limbo},
          {"foreign_segments", stats.foreign_segments},
          {"leases", stats.leases},
          {"deposits", stats.deposits},
          {"unkept", stats.unkept},
          {"descriptors", stats.descriptors},
          {"host_waits", stats.host_waits},
          {"devices", std::move(devices)},
          {"borrowers", std::move(borrowers)},
          {"in_transit", std::move(transits)}};
}

void print_as_json(const OwnerList& list) {
  nlohmann::json rows = nlohmann::json::array();
  for (const OwnerInfo& owner : list.owners) rows.push_back(as_json(owner));
  nlohmann::json silent = nlohmann::json::array();
  for (const SilentOwner& owner : list.silent)
    silent.push_back({{"pid", owner.pid}, {"socket", owner.socket}, {"why", owner.why}});
  print_json({{"owners", std::move(rows)}, {"silent", std::move(silent)}});
}

int ls(OutputFormat format) {
  const OwnerList list = ask_owners();
  if (format == OutputFormat::json) {
    print_as_json(list);
    return 0;
  }
  print_table(list.owners);
  for (const OwnerInfo& owner : list.owners) print_details(owner);
  for (const SilentOwner& owner : list.silent) fmt::print("Not listed: {}\n", owner.why);
  return 0;
}

}  // namespace

void add_ls(CLI::App& app, Command& command) {
  auto* sub = app.add_subcommand("ls", "List who shares what on this machine, and who borrows it");
  auto format = add_format_option(*sub);
  sub->footer(
      "Asks every process of this user that shares memory:\n"
      "  blocks      allocations alive in it, and their bytes\n"
      "  memory      physical memory reserved in its segments\n"
      "  limbo       blocks it has freed that somebody still borrows\n"
      "  in transit  blocks held for a receiver that has not taken them yet\n"
      "Below the table: memory on devices, who borrows how many blocks, how long blocks have been in\n"
      "transit, and who did not answer within two seconds.\n"
      "\n"
      "Examples:\n"
      "  onecopy ls\n"
      "  onecopy ls --format json | jq '.owners[] | {pid, bytes}'");
  sub->callback([&command, format] { command = [format] { return ls(*format); }; });
}

}  // namespace onecopy::cli
