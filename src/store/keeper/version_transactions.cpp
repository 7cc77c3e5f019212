// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <iterator>
#include <utility>

#include "core/point.h"
#include "core/throw_error.h"
#include "store/keeper/version_rules.h"

namespace onecopy::store {

const Transactions::Open& VersionRules::require_open(const Token& transaction) const {
  const Transactions::Open* const open = catalog_.transactions().find(transaction);
  if (open && !is_broken(transaction, *open)) return *open;
  if (catalog_.transactions().end_of(transaction).value_or(0) != 0)
    throw Error(ErrorCode::stale_handle, "the transaction is committed already");
  throw Error(ErrorCode::stale_handle,
              "the transaction was aborted, and nothing of it is left: a process that took part ended or "
              "gave it up, or both halves of the keeper were killed; begin another one");
}

bool VersionRules::is_broken(const Token& token, const Transactions::Open& transaction) const {
  const auto is_here = [this](const auto& part) { return keeper_.is_here(part.first); };
  return transaction.members.empty() || !is_carried_on(token, transaction) ||
         !std::ranges::all_of(transaction.parts, is_here);
}

bool VersionRules::is_carried_on(const Token& token, const Transactions::Open& transaction) const {
  const auto is_alive = [this](const auto& m) {
    return keeper_.is_here(m.first) && keeper_.may_be_read(m.first);
  };
  const std::uint32_t away = transaction.members.begin()->second.keep;
  if (away == 0) return std::ranges::all_of(transaction.members, is_alive);
  const auto last = carried_.find(token);
  return std::ranges::any_of(transaction.members, is_alive) ||
         keeper_.now() <= (last == carried_.end() ? begin_ : last->second) + std::chrono::seconds(away);
}

/// Notes which transactions have a process now.
void VersionRules::note_carried() {
  std::erase_if(carried_, [this](const auto& one) { return !catalog_.transactions().find(one.first); });
  for (const auto& [token, open] : catalog_.transactions().open())
    for (const auto& [id, member] : open.members)
      if (member.keep != 0 && keeper_.is_here(id) && keeper_.may_be_read(id))
        carried_[token] = keeper_.now();
}

void VersionRules::forget_all(const Transactions::Records& records) {
  for (const auto& [id, record] : records)
    if (keeper_.is_here(id)) keeper_.forget(id);
}

void VersionRules::join(const Token& transaction, VersionRecord member, const Take& take) {
  const bool begins = member.token == transaction && !catalog_.transactions().find(transaction) &&
                      !catalog_.transactions().end_of(transaction);
  if (!begins && find(require_open(transaction).members, member.token)) return;
  if (member.keep != 0) carried_[transaction] = keeper_.now();
  const std::uint64_t id = member.id = catalog_.next_id();
  take_and_write(
      {.kind = Record::Kind::join, .id = id, .version = std::move(member), .transaction = transaction},
      take);
}

void VersionRules::publish_part(const Token& transaction, VersionRecord version, const Take& take) {
  check_name(version.name);
  if (catalog_.find(version.name, version.token) || catalog_.find_dropped(version.name, version.token))
    return;  // the answer to the commit was lost, and the client repeats all of its publish
  const Transactions::Records& parts = require_open(transaction).parts;
  const VersionRecord* const before = find(parts, version.token);
  if (before && before->kind == version.kind) return;
  for (const auto& [id, part] : parts)
    if (part.name == version.name && part.token != version.token)
      throw_error(ErrorCode::invalid_argument, "the transaction has a version of \"{}\" already",
                  version.name);
  if (version.kind != VersionKind::draft) check_kind(version);
  room_for(version);
  const std::uint64_t replaced = before ? before->id : 0;
  const Token token = version.token;
  const std::uint64_t id = version.id = catalog_.next_id();
  take_and_write(
      {.kind = Record::Kind::part, .id = id, .version = std::move(version), .transaction = transaction},
      take);
  reservations_.release(token);
  if (replaced != 0) keeper_.forget(replaced);
}

const VersionRecord& VersionRules::draft(const Token& transaction, const Token& token) const {
  const VersionRecord* const part = find(require_open(transaction).parts, token);
  if (part && part->kind == VersionKind::draft) return *part;
  throw Error(ErrorCode::stale_handle, "the draft was published already");
}

/// Returns the ids of the versions to drop, so that all parts fit into the limits as current versions.
std::vector<std::uint64_t> VersionRules::room_for_all(const Transactions::Records& parts) const {
  std::vector<std::uint64_t> dropped;
  for (const auto& [id, part] : parts) std::ranges::copy(room_for(part), std::back_inserter(dropped));
  std::ranges::sort(dropped);
  dropped.erase(std::unique(dropped.begin(), dropped.end()), dropped.end());
  return dropped;
}

/// Returns the smallest number that a part may have. Throws invalid_argument if the one that it must have is taken.
std::uint64_t VersionRules::number_for(const VersionRecord& part) const {
  const std::uint64_t wanted = part.number & ~kExactNumber;
  if (wanted == part.number) return std::max(wanted, catalog_.next_number(part.name));
  const auto* const there = catalog_.find(part.name, wanted);
  if (there && keeper_.is_here(there->record.id))
    throw_error(ErrorCode::invalid_argument, "the store has another version {} of \"{}\": remove it first",
                wanted, part.name);
  return wanted;
}

std::uint64_t VersionRules::commit(const Token& transaction) {
  if (const auto number = catalog_.transactions().end_of(transaction); number.value_or(0) != 0)
    return *number;
  const Transactions::Open open = require_open(transaction);  // a copy, since the record removes it
  Record record{.kind = Record::Kind::commit, .transaction = transaction};
  record.version.number = 1;
  record.version.made_at = keeper_.wall_clock();
  for (const auto& [id, part] : open.parts) {
    if (part.kind == VersionKind::draft)
      throw_error(ErrorCode::invalid_argument,
                  "the draft of \"{}\" is not published yet, so the transaction is not complete",
                  part.name);
    check_kind(part);
    record.version.number = std::max(record.version.number, number_for(part));
  }
  if (record.version.number > kMaxNumber)
    throw Error(ErrorCode::unsupported, "an object of the transaction has no numbers left");
  const auto dropped = room_for_all(open.parts);
  write(record);
  point("store.commit.recorded");
  for (const auto& [id, part] : open.parts) {
    ++published_[part.name];
    unreclaimed_.insert(part.name);
  }
  forget_all(open.members);
  for (const std::uint64_t id : dropped) drop(id);
  return record.version.number;
}

void VersionRules::leave(const Token& transaction, const Token& member) {
  if (catalog_.transactions().end_of(transaction).value_or(0) != 0) return;
  const VersionRecord* const found = find(require_open(transaction).members, member);
  if (found) drop(found->id);
}

void VersionRules::abort(const Token& transaction) {
  const Transactions::Open* const found = catalog_.transactions().find(transaction);
  if (!found) return;
  const Transactions::Open open = *found;
  write({.kind = Record::Kind::abort, .transaction = transaction});
  forget_all(open.members);
  forget_all(open.parts);
}

void VersionRules::abort_broken() {
  note_carried();
  std::vector<Token> broken;
  for (const auto& [token, open] : catalog_.transactions().open())
    if (is_broken(token, open)) broken.push_back(token);
  for (const Token& token : broken) abort(token);
}

}  // namespace onecopy::store
