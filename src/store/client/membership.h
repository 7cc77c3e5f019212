// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "os/process.h"
#include "os/program_mark.h"
#include "store/client/client.h"
#include "store/format/message.h"

namespace onecopy::store {

/// The part of this process in a transaction. A mark on a file shows the keeper that the process lives and takes part. The
/// destructor ends the mark, so that the keeper aborts the transaction, unless the part was concluded.
///
/// Thread safety: all members may be called concurrently.
class Membership {
 public:
  /// Takes part in a transaction, or begins one. Throws stale_handle for a transaction that has ended.
  static std::shared_ptr<Membership> join(std::shared_ptr<Client> client, const Token& transaction);
  static std::shared_ptr<Membership> begin(std::shared_ptr<Client> client);
  /// Begins the transaction of that token, or takes part in it. If this process ends, another one may go on within `away`.
  static std::shared_ptr<Membership> carry(std::shared_ptr<Client> client, const Token& transaction,
                                           bool begins, std::chrono::seconds away);
  Membership& operator=(Membership&&) = delete;
  ~Membership();

  const Token& transaction() const noexcept { return transaction_; }
  /// Ends the transaction or the part of this process. Returns the number of a transaction that was committed.
  std::uint64_t conclude(Conclude::How how);

 private:
  Membership(std::shared_ptr<Client> client, const Token& transaction, const Token& member,
             std::chrono::seconds away = {});

  std::shared_ptr<Client> client_;  // shared with stores and readings
  const Token transaction_, member_;
  const int pid_ = current_pid();
  std::unique_ptr<ProgramMark> mark_;
};

/// Returns bytes as hexadecimal digits.
std::string text_of(const Token& token);
/// Reads the token at the beginning of a text, and removes it from the text. Throws bad_handle.
Token take_token(std::string_view& text);

}  // namespace onecopy::store
