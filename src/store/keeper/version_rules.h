// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "store/keeper/catalog.h"
#include "store/keeper/reservations.h"

namespace onecopy::store {

/// The keeper, as the rules of versions see it. Tests have a keeper without processes.
class VersionKeeper {
 public:
  using Clock = std::chrono::steady_clock;

  virtual ~VersionKeeper() = default;
  virtual Clock::time_point now() const = 0;
  virtual std::int64_t wall_clock() const = 0;  ///< nanoseconds since 1970
  /// Returns whether the keeper has the memory of the version.
  virtual bool is_here(std::uint64_t id) const = 0;
  /// Returns false if no process has the version open, or if the member of a transaction has ended. REQUIRES: is_here().
  virtual bool may_be_read(std::uint64_t id) const = 0;
  /// Appends a record to the index. Throws with nothing changed.
  virtual void write(const Record& record) = 0;
  /// Gives the memory of a version, or the file of a member, up. Readers keep what they have mapped.
  virtual void forget(std::uint64_t id) = 0;
};

/// The rules of versions: which number a version gets, which version is current, who may bring one back, which ones are
/// dropped, and which ones become current together.
///
/// Guarantees. A number is used once. A version is shown in the order of publish and rollback, whatever processes died
/// in between. A version that may be read is dropped by remove() alone. A dropped version never comes back.
///
/// Mechanism. The index outlives the keeper, and the memory of versions outlives it in the processes that read them. So
/// a new keeper knows all versions from the start, and those that it has no memory of are *awaited*: processes that
/// have one give it back. During the first kGrace open() waits for the current version; after that it takes the newest one
/// whose memory is here. After kAwaited it *gives up* the versions that are still awaited, and shows them no longer. They
/// may come back, below the current version, until their object is published again or removed. An awaited version is
/// dropped if its object was published more than `keep` times.
///
/// A transaction has *members*, the processes that take part, and *parts*, the versions that are not shown yet. One
/// record makes all parts exist. Each member has a file that it keeps locked, so that the kernel says whether it lives;
/// a member that ends before it has left aborts the transaction, and so does the end of both halves of the keeper. If the
/// members say how long they may be away (in their field `keep`, in seconds), the transaction stays for that time after
/// the last one has ended, so that another process goes on.
///
/// Thread safety: none.
class VersionRules {
 public:
  using Clock = VersionKeeper::Clock;
  /// Lets the keeper have the memory of the version with this id.
  using Take = std::function<void(std::uint64_t id)>;

  static constexpr std::chrono::seconds kGrace{2};
  static constexpr std::chrono::minutes kAwaited{10};
  static constexpr std::chrono::seconds kNextPoll{1};
  static constexpr std::uint64_t kMaxNumber = std::uint64_t{1} << 62;

  /// `begin`: the start of the keeper. `knows_all`: false if the index was lost, so that versions which the index does
  /// not name may be given back.
  VersionRules(VersionKeeper& keeper, Limits limits, Clock::time_point begin, bool knows_all)
      : keeper_(keeper), reservations_(std::move(limits)), begin_(begin), knows_all_(knows_all) {}

  /// Applies a record of the index.
  void replay(const Record& record) { catalog_.apply(record); }
  const Catalog& catalog() const noexcept { return catalog_; }
  /// Returns the records of a new index, with the same meaning and without what needs not be known any longer.
  std::vector<Record> records();

  /// Publishes a version, and returns its number. A version whose token was published before gets its number again.
  /// Throws invalid_argument, out_of_memory, and what Take and VersionKeeper::write() throw, with nothing changed.
  std::uint64_t publish(VersionRecord version, const Take& take);
  /// Lets a process take part in a transaction: as the first one, if its token is the transaction's. A member that takes
  /// part already goes on. Throws stale_handle for a transaction that has ended, and as publish().
  void join(const Token& transaction, VersionRecord member, const Take& take);
  /// Adds a part to a transaction, or puts it in the place of the part with the same token. Drops nothing. Throws
  /// stale_handle for a transaction that has ended, and as publish().
  void publish_part(const Token& transaction, VersionRecord version, const Take& take);
  /// Returns a part that is being written. Throws stale_handle.
  const VersionRecord& draft(const Token& transaction, const Token& token) const;
  /// Makes all parts of a transaction the current versions of their objects, with one number, which the function returns.
  /// Throws stale_handle if the transaction was aborted, because a member has ended too soon; invalid_argument for a
  /// part that is still written; and as publish(), with nothing changed.
  std::uint64_t commit(const Token& transaction);
  /// Ends the part of a process in a transaction, which no longer depends on that process.
  void leave(const Token& transaction, const Token& member);
  /// Ends a transaction, whose parts are then gone.
  void abort(const Token& transaction);
  /// Aborts the transactions of which a member has ended without having left.
  void abort_broken();

  /// Returns the version of that number, or the current one for 0. Returns null if it may be here by grace_end().
  /// Throws stale_handle.
  const VersionRecord* open(const std::string& name, std::uint64_t number) const;
  Clock::time_point grace_end() const noexcept { return begin_ + kGrace; }
  /// Returns the version that open(name, 0) would return now; null if there is none.
  const VersionRecord* current(const std::string& name) const noexcept;
  /// Takes the memory of a version back. `is_ours`: the client opened the version while this keeper ran. Throws
  /// stale_handle for a version that was dropped, and what publish() throws.
  void restore(VersionRecord version, bool is_ours, const Take& take);
  /// Makes an earlier version the current one. Throws stale_handle.
  void rollback(const std::string& name, std::uint64_t number);
  /// Drops all versions but the `keep` that were current last, whether they are read or not.
  void remove(const std::string& name, std::size_t keep);

  /// Counts a draft in the limits. Throws out_of_memory.
  void reserve(std::uint64_t owner, const VersionRecord& version);
  void release(const Token& token) { reservations_.release(token); }
  void release_all(std::uint64_t owner) { reservations_.release_all(owner); }

  /// Drops the versions of an object that nobody reads, beyond the number that the last publisher wanted to keep.
  void reclaim(const std::string& name);
  /// Lets the next reclaim_due() poll all objects.
  void poll_all();
  /// Drops what nobody reads now, and what is too old.
  void reclaim_due();
  /// Drops what nobody reads, because the keeper ends and nobody could give it back.
  void drop_unread();
  /// Returns the time at which reclaim_due() may find something; time_point::max() if nothing is left to drop.
  Clock::time_point next_reclaim() const;
  /// Returns whether the keeper may end without a loss.
  bool is_unused() const noexcept {
    return catalog_.size() == 0 && catalog_.transactions().open().empty() && !reservations_.is_reserved();
  }

 private:
  const Catalog::Version& require(const std::string& name, std::uint64_t number) const;
  [[noreturn]] void throw_missing(const std::string& name, std::uint64_t number) const;
  void check_kind(const VersionRecord& version) const;
  bool check_restored(const VersionRecord& version, bool is_ours) const;
  const VersionRecord& add(VersionRecord version, const Take& take);
  void take_and_write(const Record& record, const Take& take);
  const Transactions::Open& require_open(const Token& transaction) const;
  bool is_broken(const Token& token, const Transactions::Open& transaction) const;
  bool is_carried_on(const Token& token, const Transactions::Open& transaction) const;
  void note_carried();
  void forget_all(const Transactions::Records& records);
  std::uint64_t number_for(const VersionRecord& part) const;
  std::vector<std::uint64_t> room_for_all(const Transactions::Records& parts) const;
  void write(const Record& record);
  void drop(std::uint64_t id);
  bool is_in_grace() const { return keeper_.now() < grace_end(); }
  bool is_awaited(const std::string& name) const;
  std::vector<std::uint64_t> room_for(const VersionRecord& version) const;
  std::vector<const VersionRecord*> versions_here() const;
  std::vector<const VersionRecord*> all_beside(const VersionRecord& version) const;
  std::vector<const VersionRecord*> droppable() const;
  void expire_by_age();
  void give_up_awaited();

  VersionKeeper& keeper_;
  Catalog catalog_;
  Reservations reservations_;
  const Clock::time_point begin_;
  const bool knows_all_;
  bool has_given_up_ = false;                       ///< no version is awaited any longer
  std::map<std::string, std::uint64_t> published_;  ///< the number of publishes since the start, by name
  std::map<Token, Clock::time_point> carried_;      ///< when a process last took part, by the transaction
  std::set<std::string> unreclaimed_;               ///< the objects with versions beyond `keep`
};

}  // namespace onecopy::store
