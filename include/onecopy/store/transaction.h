// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "onecopy/core/api.h"
#include "onecopy/store/store.h"

ONECOPY_API_BEGIN
namespace onecopy::store {

/// A set of versions of several objects, from several processes, that become current together and with the same number. Until then no
/// process sees them, and they push no other version out.
///
/// Each process that takes part must end its part: with commit(), abort() or leave(). If a process ends without
/// that, or drops all copies of its Transaction and the drafts of it, the transaction is aborted: nothing of it is
/// left, and the other processes get stale_handle. The kernel tells the keeper of a process that was killed. If both halves
/// of the keeper are killed at once, all transactions that are open are aborted.
///
/// Thread safety: all members may be called concurrently. Copies are the same part of the same process. A forked child takes
/// no part. Members of a Transaction that was moved from throw closed.
class Transaction {
 public:
  /// Returns a text by which other processes take part, with Store::join().
  std::string handle() const;
  /// Makes a draft that was not published yet a version of the transaction; its publish() then returns 0. Throws invalid_argument for a draft
  /// that other processes write already, or that belongs to a transaction.
  void add(Draft& draft) const;
  /// Adds a version with copies of the tensors. Throws as Store::publish(), and invalid_argument if the transaction has a
  /// version of that object.
  void publish(const std::string& name, std::span<const NamedTensor> tensors,
               const PublishOptions& options = {});

  /// Makes all versions current, and returns their number, which is larger than all numbers that these objects have had. May be
  /// called again after timeout. Throws stale_handle if the transaction was aborted, and invalid_argument if a draft of it
  /// was not published yet.
  std::uint64_t commit();
  /// Ends the part of this process, whose published versions stay in the transaction.
  void leave();
  /// Ends the transaction. Nothing of it is left.
  void abort();

 private:
  Transaction(Store store, std::shared_ptr<Membership> membership) noexcept
      : store_(std::move(store)), membership_(std::move(membership)) {}
  Membership& membership() const;

  Store store_;
  std::shared_ptr<Membership> membership_;  // shared with copies and drafts
  friend class Store;
};

}  // namespace onecopy::store
ONECOPY_API_END
