// SPDX-License-Identifier: Apache-2.0
#include "store/keeper/transactions.h"

#include <algorithm>

namespace onecopy::store {

const VersionRecord* find(const Transactions::Records& records, const Token& token) noexcept {
  for (const auto& [id, record] : records)
    if (record.token == token) return &record;
  return nullptr;
}

void Transactions::apply(const Record& record) {
  switch (record.kind) {
    case Record::Kind::join: open_[record.transaction].members[record.id] = record.version; return;
    case Record::Kind::part: {
      Records& parts = open_[record.transaction].parts;
      std::erase_if(parts, [&](const auto& part) { return part.second.token == record.version.token; });
      parts[record.id] = record.version;
      return;
    }
    case Record::Kind::abort: return end(record.transaction, 0);
    default:
      for (auto& [token, open] : open_) open.members.erase(record.id);
  }
}

Transactions::Records Transactions::commit(const Token& transaction, std::uint64_t number) {
  Records parts;
  if (const auto at = open_.find(transaction); at != open_.end()) parts = std::move(at->second.parts);
  end(transaction, number);
  return parts;
}

void Transactions::end(const Token& transaction, std::uint64_t number) {
  open_.erase(transaction);
  ended_.emplace_back(transaction, number);
  if (ended_.size() > kMaxEnded) ended_.pop_front();
}

const Transactions::Open* Transactions::find(const Token& transaction) const {
  const auto at = open_.find(transaction);
  return at == open_.end() ? nullptr : &at->second;
}

std::optional<std::uint64_t> Transactions::end_of(const Token& transaction) const {
  const auto at = std::ranges::find(ended_, transaction, &std::pair<Token, std::uint64_t>::first);
  return at == ended_.end() ? std::nullopt : std::optional(at->second);
}

bool Transactions::has(std::uint64_t id) const noexcept {
  return std::ranges::any_of(open_, [id](const auto& entry) {
    return entry.second.members.contains(id) || entry.second.parts.contains(id);
  });
}

void Transactions::add_records(std::vector<Record>& records) const {
  for (const auto& [token, number] : ended_) {
    records.push_back(
        {.kind = number != 0 ? Record::Kind::commit : Record::Kind::abort, .transaction = token});
    records.back().version.number = number;
  }
  for (const auto& [token, open] : open_) {
    for (const auto& [id, member] : open.members)
      records.push_back({.kind = Record::Kind::join, .id = id, .version = member, .transaction = token});
    for (const auto& [id, part] : open.parts)
      records.push_back({.kind = Record::Kind::part, .id = id, .version = part, .transaction = token});
  }
}

}  // namespace onecopy::store
