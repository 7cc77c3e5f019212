// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <exception>
#include <span>
#include <string>

#include "core/point.h"
#include "os/log.h"
#include "os/memfd.h"
#include "os/read_lock.h"
#include "store/keeper/index.h"
#include "store/keeper/keeper_server.h"
#include "store/keeper/version_files.h"

namespace onecopy::store {
namespace {

constexpr std::uint64_t kSmallIndex = std::uint64_t{1} << 20;
constexpr std::uint64_t kGrowth = 4;  ///< the index may become so many times as large as its records need

void log_published(const VersionRecord& version, std::uint64_t number) noexcept {
  log_info("published version {} of \"{}\": {} bytes on {}, by pid {}", number, version.name, version.bytes,
           version.device, version.publisher);
}

/// Logs which versions a record adds, shows and drops. REQUIRES: the catalog does not have the record yet.
void log_change(const Record& record, const Catalog& catalog) {
  const Catalog::Version* const version = catalog.find(record.id);
  if (record.kind == Record::Kind::publish && !version) {
    log_published(record.version, record.version.number);
  } else if (record.kind == Record::Kind::commit) {
    if (const auto* const transaction = catalog.transactions().find(record.transaction))
      for (const auto& [id, part] : transaction->parts) log_published(part, record.version.number);
  } else if (version && (record.kind == Record::Kind::show || record.kind == Record::Kind::drop)) {
    log_info("version {} of \"{}\" {}", version->record.number, version->record.name,
             record.kind == Record::Kind::show ? "is current again" : "is dropped");
  }
}

}  // namespace

std::int64_t KeeperServer::wall_clock() const {
  return std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count();
}

bool KeeperServer::may_be_read(std::uint64_t id) const {
  const std::vector<Fd>& files = state_.versions.at(id);
  const Catalog::Version* const version = rules_.catalog().find(id);
  return version ? store::may_be_read(version->record, files) : onecopy::may_be_read(files.front());
}

/// Appends a record. Writes the index anew when it has grown.
void KeeperServer::write(const Record& record) {
  if (must_rewrite_) replace_index();
  else if (state_.index.used() > max_index_) rewrite_index();
  state_.index.append(record);
  log_change(record, rules_.catalog());
}

/// Writes a new index, with records of all that exists now. Nothing is appended to the old one after the new one has
/// taken its place, nor to the new one before the guard has it.
void KeeperServer::replace_index() {
  state_.index = store::replace_index(state_.index_path, rules_.records());
  must_rewrite_ = true;
  point("store.index.rewritten");
  const int fd = state_.index.fd().get();
  guard_.send(Partner::Kind::index, 0, std::span(&fd, 1));
  must_rewrite_ = false;
}

/// Writes a new index. If that fails, the old one stays, which has the same meaning.
void KeeperServer::rewrite_index() noexcept {
  try {
    replace_index();
  } catch (const std::exception& error) {
    log_warning("the store goes on with its old index: {}", error.what());
  }
  max_index_ = std::max(kSmallIndex, kGrowth * state_.index.used());
}

/// Makes the catalog from the index. Drops versions without a record, which were being published when the last worker
/// ended: their publishers ask again.
void KeeperServer::recover() {
  state_.index.catch_up();
  must_rewrite_ = !state_.index.has_name();  // no other keeper would find its records
  state_.index.for_each([this](const Record& record) { rules_.replay(record); });
  std::vector<std::uint64_t> unknown;
  for (const auto& [id, fds] : state_.versions)
    if (!rules_.catalog().find(id) && !rules_.catalog().transactions().has(id)) unknown.push_back(id);
  for (const std::uint64_t id : unknown) forget(id);
  rules_.poll_all();
}

/// Takes the memory of a version, and gives it to the guard. Opens the table anew, since the sender may have a lock of
/// the open file that came.
void KeeperServer::take(std::uint64_t id, std::vector<Fd> files) {
  files.front() = reopen_read_only(files.front());
  guard_.send(Partner::Kind::take, id, numbers_of(files));
  state_.versions[id] = std::move(files);
}

/// The guard is the last process that has the memory, and spends the time to free it.
void KeeperServer::forget(std::uint64_t id) {
  state_.versions.erase(id);
  guard_.send(Partner::Kind::drop, id);
}

}  // namespace onecopy::store
