// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "onecopy/store/store.h"
#include "os/deadline.h"
#include "os/mutex.h"
#include "os/process.h"
#include "store/format/link.h"
#include "store/format/message.h"
#include "store/format/place.h"

namespace onecopy::store {

/// The time that a call waits for a keeper that is being replaced.
inline constexpr std::chrono::seconds kKeeperPatience{10};

/// A process's connection to the keeper, and the versions that the process reads. When the keeper is replaced, connects
/// again and tells the new keeper what is read here, with the descriptors in case the keeper has lost a version.
///
/// Thread safety: all members may be called concurrently. A forked child makes a Client of its own.
class Client : public std::enable_shared_from_this<Client> {
 public:
  /// A version that is read here. The destructor tells the keeper that the reading has ended. Move-only. Thread safety:
  /// as a value.
  class Reading {
   public:
    Reading() = default;
    Reading(Reading&& other) noexcept = default;
    Reading& operator=(Reading&& other) noexcept {
      std::swap(client_, other.client_);
      std::swap(at_, other.at_);
      return *this;
    }
    ~Reading() {
      if (client_) client_->release(at_);
    }
    explicit operator bool() const noexcept { return client_ != nullptr; }
    VersionRecord version() const { return client_->version_of(at_); }
    /// Duplicates of the descriptors: the table, then the chunks.
    std::vector<Fd> files() const { return client_->files_of(at_); }

   private:
    friend class Client;
    struct Held {
      VersionRecord version;
      std::vector<Fd> files;
    };
    using At = std::list<Held>::iterator;
    Reading(std::shared_ptr<Client> client, At at) noexcept : client_(std::move(client)), at_(at) {}

    std::shared_ptr<Client> client_;  // shared with stores and other readings
    At at_{};
  };

  Client(Place place, ConnectOptions options) : place_(std::move(place)), options_(std::move(options)) {}

  /// Returns the client for this process, which is a new one in a forked child.
  static Client& here(std::shared_ptr<Client>& client);

  /// Asks the keeper and returns its answer. Throws the Error of a refusal.
  template <class Answer, class Question>
  Answer ask(const Question& question, std::span<const int> fds = {},
             Deadline deadline = Deadline::after(kKeeperPatience)) {
    return unpack<Answer>(exchange([&] { return pack(question); }, fds, deadline).bytes);
  }
  /// Opens a version. Returns nothing if the current version is the one that `known` reads.
  std::optional<Reading> open(const std::string& name, std::uint64_t number, const Reading* known,
                              Deadline deadline);
  /// Returns the keeper's welcome. Connects if there is no connection.
  Welcome welcome(Deadline deadline);
  const Place& place() const noexcept { return place_; }

 private:
  /// Asks, and returns the answer. Calls `question` for each attempt, with the mutex held.
  Packet exchange(const std::function<Bytes()>& question, std::span<const int> fds, Deadline deadline);
  Packet exchange_locked(const std::function<Bytes()>& question, std::span<const int> fds,
                         Deadline deadline) REQUIRES(mutex_);
  void connect(Deadline deadline) REQUIRES(mutex_);
  void reach(Deadline deadline) REQUIRES(mutex_);
  void start() REQUIRES(mutex_);
  std::optional<Link> try_connect() const;
  void offer(Reading::Held& held, Deadline deadline) REQUIRES(mutex_);
  void release(Reading::At at) noexcept;
  VersionRecord version_of(Reading::At at) const;
  std::vector<Fd> files_of(Reading::At at) const;

  const Place place_;
  const ConnectOptions options_;
  const int pid_ = current_pid();
  mutable Mutex mutex_;
  std::optional<Link> link_ GUARDED_BY(mutex_);
  std::list<Reading::Held> readings_ GUARDED_BY(mutex_);
};

}  // namespace onecopy::store
