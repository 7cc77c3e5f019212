// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "onecopy/store/store.h"
#include "os/deadline.h"
#include "os/mutex.h"
#include "os/process.h"
#include "store/client/reading.h"
#include "store/format/link.h"
#include "store/format/message.h"
#include "store/format/store_directory.h"

namespace onecopy::store {

/// The time that a call waits for a keeper that is being replaced.
inline constexpr std::chrono::seconds kKeeperPatience{10};

/// A process's connection to the keeper. Connects again when the keeper is replaced. If the new keeper is not the
/// successor of the old one, which both were killed then, gives it back the versions that this process reads.
///
/// Readings need nothing from the keeper to go on or to end: notes to the keeper wait for no answer, and for no other
/// thread.
///
/// Thread safety: all members may be called concurrently. A forked child makes a Client of its own.
class Client : public std::enable_shared_from_this<Client> {
 public:
  Client(StoreDirectories directories, ConnectOptions options)
      : directories_(std::move(directories)), options_(std::move(options)) {}

  using Reading = store::Reading;

  /// Returns the client for this process, which is a new one in a forked child.
  static Client& here(std::shared_ptr<Client>& client);

  /// Asks the keeper and returns its answer. Throws the Error of a refusal.
  template <class Answer, class Question>
  Answer ask(const Question& question, std::span<const int> fds = {},
             Deadline deadline = Deadline::after(kKeeperPatience)) {
    return unpack<Answer>(exchange([&] { return pack(question); }, fds, deadline).bytes);
  }
  /// Asks the keeper and returns its answer with the descriptors.
  template <class Question>
  Packet ask_for_files(const Question& question) {
    return exchange([&] { return pack(question); }, {}, Deadline::after(kKeeperPatience));
  }
  /// Opens a version. Returns nothing if the version is the one that `known` reads.
  std::optional<Reading> open(const std::string& name, std::uint64_t number, const Reading* known,
                              Deadline deadline);
  /// Counts a version in the keeper's limits before its memory is made. Throws out_of_memory with the numbers.
  ReservedRoom reserve(const VersionRecord& version, Deadline deadline);
  /// Returns the keeper's welcome. Connects if there is no connection.
  Welcome welcome(Deadline deadline);
  /// Connects again if the connection has ended. Starts no keeper. Throws peer_died if there is none.
  void rejoin();
  const StoreDirectories& directories() const noexcept { return directories_; }
  /// Returns the directory of the keeper. Connects if there is no connection.
  std::string home(Deadline deadline);

  /// Sends a message that has no answer, now or after the question that another thread asks. Does nothing in a forked
  /// child and without a connection.
  void note(Bytes message) noexcept;

  std::atomic<bool> is_watched{false};  ///< a LinkWatch belongs to this client

 private:
  /// Asks, and returns the answer. Calls `question` for each attempt, with the mutex held.
  Packet exchange(const std::function<Bytes()>& question, std::span<const int> fds, Deadline deadline);
  Packet exchange_locked(const std::function<Bytes()>& question, std::span<const int> fds,
                         Deadline deadline) REQUIRES(mutex_);
  void connect(Deadline deadline) REQUIRES(mutex_);
  void reach(Deadline deadline) REQUIRES(mutex_);
  void start() REQUIRES(mutex_);
  std::optional<Link> try_connect() const;
  void restore_all(Deadline deadline) REQUIRES(mutex_);
  void ask_while_connecting(const Bytes& question, std::span<const int> fds, Deadline deadline,
                            const std::function<void(const Error&)>& refused) REQUIRES(mutex_);
  void restore(ReadVersion& read, Deadline deadline) REQUIRES(mutex_);
  void reserve_again(const VersionRecord& version, Deadline deadline) REQUIRES(mutex_);
  void send_notes() noexcept REQUIRES(mutex_);

  const StoreDirectories directories_;
  const ConnectOptions options_;
  const int pid_ = current_pid();
  Mutex mutex_;
  std::optional<Link> link_ GUARDED_BY(mutex_);
  std::vector<std::weak_ptr<ReadVersion>> read_
      GUARDED_BY(mutex_);  ///< the versions that are read here, and some that no longer are
  std::vector<std::weak_ptr<const VersionRecord>> reserved_ GUARDED_BY(mutex_);  ///< as `read_`
  Mutex notes_mutex_ ACQUIRED_AFTER(mutex_);
  std::vector<Bytes> notes_ GUARDED_BY(notes_mutex_);
};

}  // namespace onecopy::store
