// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "os/host_address.h"
#include "store/client/client.h"
#include "store/ferry/arrival.h"
#include "store/ferry/local_versions.h"
#include "store/ferry/origins.h"
#include "store/ferry/stream.h"
#include "transport/fabric.h"

namespace onecopy::store::ferry {

struct PullOptions {
  std::vector<HostAddress> sources;  ///< asked in this order
  std::string name;
  std::uint64_t number = 0;  ///< 0 for the newest version
  std::vector<Bytes> keys;   ///< tried in this order
  ConnectOptions keeper{};
  StoreDirectories directories = StoreDirectories::of_this_user();  ///< of the keeper
  Deadline lock_until = kNow;  ///< until then another process may pull the object
  /// The time in which a host must send something. After that, another host is asked.
  std::chrono::milliseconds patience{10'000};
  /// A function that is called between two chunks and between two attempts. Its exceptions end the call of Pull that waits.
  std::function<void()> between_chunks = [] {};
};

/// A change that pulling has made here.
struct Pulled {
  std::uint64_t number = 0;
  std::uint64_t bytes = 0;  ///< of the version
  std::uint64_t taken = 0;  ///< bytes that were received for it by this process
  bool is_new = false;      ///< false: the version was here already
};

/// Brings versions of an object from another host into the store of this host.
///
/// Guarantees. A version is current here only once it is whole. A version of a smaller number follows one of a larger number only
/// if both come from one host, which has rolled back. What has arrived of a version stays for
/// another pull if this process ends, see Arrival. A source that is slow is left for one that is twice as fast, if there is one.
///
/// Thread safety: none.
class Pull {
 public:
  /// Throws invalid_argument if another process of this host pulls the object.
  explicit Pull(PullOptions options);

  /// Brings the version of the first source that answers. Returns nothing if that source has no other version within `wait`.
  /// Throws an error if no source helps; may be called again, and then takes only chunks that are missing.
  std::optional<Pulled> next(std::chrono::milliseconds wait);

  struct Retries {
    bool follows = false;  ///< also after an error about a version that is missing, or has no room yet
    std::chrono::nanoseconds max_away = std::chrono::nanoseconds::max();  ///< the time without a chunk
    std::function<void(const Error&)> failed;  ///< gets each error that differs from the one before
  };
  /// Calls next() again after an error that may pass, such as one of a host that is away.
  std::optional<Pulled> next(std::chrono::milliseconds wait, const Retries& retries);

  /// A version of which this host knows by others than its sources. Its number is the same on all hosts.
  struct Chosen {
    Token version{};
    std::uint64_t number = 0;
  };
  /// Brings a version up to its last chunk, and shows it to nobody here. Returns its bytes. Throws as next(), and stale_handle if no source has
  /// the version.
  std::uint64_t stage(const Chosen& chosen);
  /// Adds a version that this process has made, in `memory` that is sealed, as stage() does.
  Arrival stage(const Chosen& chosen, std::uint32_t keep, Table table, Fd memory);
  /// Lets the keeper hold for another Arrival::kAway what was staged.
  void renew(const Token& version) { find_arrival(version); }
  /// Returns the bytes of a version that is here whole; nothing if it is not.
  std::optional<std::uint64_t> has(const Chosen& chosen);
  /// Makes a version current that is here whole. Returns false if it is not.
  bool show(const Chosen& chosen);
  /// Drops what has arrived of a version that is not current.
  void drop(const Token& version);
  /// Drops what has arrived of versions that this host began with, as processes before may have left them. Asks `is_wanted` about those
  /// that are arriving alone.
  void drop_arriving_unless(const std::function<bool(const Token&)>& is_wanted);
  /// Returns the version that is current here; nothing if there is none. Throws invalid_argument for one that was published here.
  std::optional<Token> shown() { return shown_origin(); }

  /// Returns all bytes of chunks that have come.
  std::uint64_t taken() const noexcept { return taken_; }
  /// Returns the number of the version that is current here; 0 if there is none.
  std::uint64_t current() { return LocalVersions::of(*client_, options_.name).current; }

 private:
  struct Source {
    HostAddress at;
    std::optional<Stream> stream;
    std::unique_ptr<transport::FabricPipe>
        pipe;                    ///< for the bytes of chunks; null: they go over the stream
    Deadline away_until = kNow;  ///< before that another source is asked
    std::optional<double>
        rate{};  ///< bytes per second, of one that was slow; 0: it has not got the version
  };

  std::optional<Pulled> next_of(Source& source, std::chrono::milliseconds wait);
  static void leave(Source& source) noexcept;
  Stream connect(const HostAddress& to) const;
  void begin_pipe(Source& source) const;
  Told poll(Source& source, std::uint64_t number, const Token& known, std::chrono::milliseconds wait);
  std::optional<Token> shown_origin();
  void check_order(const Source& source, const Told& told) const;
  Pulled bring(Source& source, const Told& told);
  std::optional<std::uint64_t> show_again(const Source& source, const Told& told);
  std::optional<Origins::Pair> find_here(const Token& version);
  std::optional<Arrival> find_arrival(const Token& version);
  std::optional<Told> told_of(Source& source, const Chosen& chosen);
  std::uint64_t bring_whole(Source& source, const Told& told);
  Arrival begin(const Source& source, const Told& told);
  void take_all(Source& source, const Told& told, Arrival& arrival);
  bool offers(Source& source, const Told& wanted);
  void take_chunks(Source& source, Arrival& arrival);
  Source& fastest();
  void check_rate(Source& source, std::uint64_t bytes, TimePoint since) const;
  std::uint32_t receive(Source& source, std::span<std::byte> room,
                        std::chrono::milliseconds patience) const;
  std::uint64_t take_chunk(Source& source, Arrival& arrival, const Chunk& told,
                           std::chrono::milliseconds patience);

  const PullOptions options_;
  std::vector<std::shared_ptr<const transport::TlsContext>> contexts_;  // shared with connections
  const std::shared_ptr<Client> client_;
  Origins origins_;
  std::vector<Source> sources_;
  std::uint64_t taken_ = 0;
  const bool is_over_ucx_;
};

}  // namespace onecopy::store::ferry
