// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "onecopy/core/api.h"
#include "onecopy/core/device.h"
#include "onecopy/core/layout.h"
#include "onecopy/memory/tensor.h"
#include "onecopy/share/bundle.h"
#include "onecopy/store/kv_pool.h"

namespace onecopy::store {
class Client;
class Membership;
}  // namespace onecopy::store

ONECOPY_API_BEGIN
/// The store: named tensors that outlive the process that made them. A keeper, which consists of two processes that
/// restart each other, holds the memory of each version and maps none. The command `onecopy store` offers the same
/// functions.
namespace onecopy::store {

/// A map of names to plain texts.
using Texts = std::map<std::string, std::string>;

struct ConnectOptions {
  /// Starts a keeper if there is none. ONECOPY_STORE_AUTOSTART=0 prevents the start, too.
  bool autostart = true;
  /// The onecopy command, which runs the keeper: a path, or a name that is found in PATH.
  std::string command = "onecopy";
};

/// The place of the tensors of a version.
enum class Placement : std::uint8_t {
  slot,  ///< memory of the version's own, into which the tensors are copied
  /// The memory in which the tensors already are, if it belongs to onecopy and this process owns it, or if it belongs
  /// to a version. Other tensors are copied into memory of onecopy. This process keeps the memory until the version is
  /// gone and no process reads the version. If both halves of the keeper are killed at once, the version is lost unless
  /// a process has it open: open() throws stale_handle. REQUIRES: no process writes to the tensors afterwards.
  as_is,
};

struct PublishOptions {
  /// The number of versions of the object that stay, the new one included: the versions that were current last. Other
  /// versions stay only as long as a process reads them.
  std::uint32_t keep = 2;
  /// The identity of the version, for open(): a digest of the checkpoint, a rank, a quantization.
  Texts key{};
  Texts attributes{};
  /// Bytes beside the tensors, by names that no tensor has: metadata, scalars of an optimizer. They may differ between the
  /// versions that a follower shows.
  std::map<std::string, std::string> bytes{};
  /// Stores a checksum of each tensor, for Version::verify().
  bool checksums = false;
  Placement place = Placement::slot;
  /// Copies tensors that cannot be published as they are. If false, they are refused with unsupported.
  bool copies = true;
};

/// The name and the row-major layout of a tensor to be made.
struct TensorSpec {
  std::string name;
  Layout layout;
  /// The number of an earlier tensor, with the same layout, whose memory this one shares.
  std::optional<std::size_t> same_as{};
};

/// A set of named tensors in the memory of one version. Each tensor keeps all of that memory mapped.
/// Thread safety: const members may be called concurrently. Copies are the same object. Members throw closed if the
/// object was moved from, and so do members of Watch, Store and KV pool.
class Contents {
 public:
  std::size_t size() const;
  const std::string& name(std::size_t row) const;
  const Layout& layout(std::size_t row) const;
  std::optional<std::size_t> find(std::string_view name) const;
  Tensor tensor(std::size_t row) const;
  /// Returns all memory as a row of bytes, in which a tensor begins at offset().
  Tensor memory() const;
  std::uint64_t offset(std::size_t row) const;
  Device device() const;

 protected:
  struct State;
  explicit Contents(std::shared_ptr<State> state) noexcept : state_(std::move(state)) {}
  State& state() const;

  std::shared_ptr<State> state_;  // shared by copies
  friend class Store;
};

/// A version of an object, mapped read-only: writing to it is a segmentation fault. As long as a copy or a tensor of it
/// lives, the keeper counts this process as a reader.
class Version : public Contents {
 public:
  /// Returns the number of the version; the first version is 1.
  std::uint64_t number() const;
  Texts key() const;
  Texts attributes() const;
  /// Returns the names of the bytes beside the tensors.
  std::vector<std::string> names_of_bytes() const;
  /// Returns bytes beside the tensors; nothing for an unknown name.
  std::optional<std::string> bytes(const std::string& name) const;
  /// Returns a new descriptor of the version's memory on the host, for a private mapping, which the caller must close. Throws
  /// unsupported for memory of a card and for a version that was published as_is, and stale_handle.
  int descriptor() const;
  /// Computes the checksums of all tensors. Throws bad_handle, which names the first tensor that differs, and
  /// invalid_argument if the version was published without checksums.
  void verify() const;

 protected:
  using Contents::Contents;
  friend class Store;
};

/// The current version of an object at addresses that stay the same: tensors and captured graphs stay valid.
/// Thread safety: all members may be called concurrently.
class Follower : public Version {
 public:
  /// Shows the object's current version, or exactly the version `to`, and returns its number.
  ///
  /// On the host, threads may read the tensors meanwhile: every load sees the old or the new version. To read one version,
  /// call update() between two steps. On a card, the call first waits for the work that this process has given to the card.
  /// REQUIRES: no thread enqueues work on a card that uses the tensors between the call and its return.
  /// Throws invalid_argument, which names the first difference, for a version with another layout, for a version that was
  /// published as_is, and while a stream of the card is captured; stale_handle if the object or the version does not
  /// exist; timeout; the error of a card that has failed. After an error the tensors are unchanged.
  std::uint64_t update(std::chrono::nanoseconds timeout = std::chrono::seconds(10),
                       std::optional<std::uint64_t> to = {});
  /// Does the part of update() that takes time for memory of the host, while threads use the tensors, which do not change:
  /// enters the pages of the version that update() would show into the page tables, and returns its number. The version
  /// stays in memory until the next update() or prepare(). Prepares nothing on a card. Throws as update().
  std::uint64_t prepare(std::chrono::nanoseconds timeout = std::chrono::seconds(10),
                        std::optional<std::uint64_t> to = {});

 private:
  using Version::Version;
  friend class Store;
};

/// The memory for the next version of an object, writable and zero. If a draft is dropped before publish(), its memory
/// is released.
class Draft : public Contents {
 public:
  /// Makes the content the object's current version, and returns its number. The memory becomes read-only, also in this
  /// process. May be called again after timeout, peer_died, or out_of_memory (a limit of the keeper).
  std::uint64_t publish();

  /// Adds bytes beside the tensors, see PublishOptions::bytes.
  void set_bytes(const std::string& name, std::string content);
  /// Returns a text by which other processes write the draft, too, with Store::join_draft(). They must have called done()
  /// before publish(), which throws stale_handle if one of them ended before that.
  std::string handle();
  /// Ends the work of this process on a draft that another process publishes. The draft is empty afterwards. REQUIRES: no
  /// tensor of the draft is used any longer.
  void done();
  /// Gives the draft up, with the transaction that it belongs to. The draft is empty afterwards.
  void abort();

 private:
  State& state() const;
  using Contents::Contents;
  void seal();
  friend class Store;
  friend class Transaction;
  friend class Group;
};

class Transaction;

/// An iterator over the versions of an object as they become current. Thread safety: none. Move-only.
class Watch {
 public:
  Watch(Watch&&) noexcept;
  Watch& operator=(Watch&&) noexcept;
  ~Watch();

  /// Waits until the object's current version differs from the last returned one, and returns its number; the first
  /// call returns the present one at once. Skips versions that were current in between. Returns nothing after the
  /// timeout.
  std::optional<std::uint64_t> next(std::chrono::nanoseconds timeout);

 private:
  struct State;
  explicit Watch(std::unique_ptr<State> state) noexcept;
  std::unique_ptr<State> state_;
  friend class Store;
};

/// Returns whether memory of the device outlives the process that made it, as a version must. Memory of Ascend devices
/// does not. Throws unsupported for a device that is absent.
bool outlives_its_maker(Device device);

/// Returns whether an address lies in memory of the store, which must not be moved. May be called concurrently.
bool is_stored(const void* at) noexcept;
/// Returns the tensor of that layout at an address for which is_stored() is true; an empty one if it is false. Thread
/// safety: may be called concurrently.
Tensor stored_tensor(void* at, const Layout& layout);

/// A version as listings show it.
struct VersionInfo {
  std::uint64_t number = 0, bytes = 0;
  std::int64_t made_at = 0;          ///< nanoseconds since 1970
  int publisher = 0;                 ///< pid
  unsigned readers = 0, unkept = 0;  ///< how often the version is open; without descriptors
  std::string device;
  bool is_awaited = false;  ///< the keeper was killed, and no process has given the version back
};
struct ObjectInfo {
  std::string name;
  std::uint64_t current = 0;
  bool is_kv_pool = false;  ///< a KV pool, whose only version is its blocks
  std::vector<VersionInfo> versions;
};

/// The two processes of the keeper.
struct KeeperInfo {
  int worker = 0, guard = 0;
};

/// The store of this user. Users do not notice that a keeper is restarted, because calls wait for the new one and ask
/// again. If both halves of the keeper were killed, this process gives the versions that it reads to the next keeper.
///
/// Thread safety: all members may be called concurrently. Copies are the same connection. A forked child gets a
/// connection of its own with its first call, which must not be concurrent. All members throw peer_died if there is no
/// keeper, timeout and other_user.
class Store {
 public:
  /// Connects to the keeper. Throws unsupported, with the reason, if the keeper cannot be started.
  static Store connect(const ConnectOptions& options = {});

  /// Makes memory for a version with this layout. Throws invalid_argument (names, layouts), out_of_memory with the numbers,
  /// and unsupported for a device whose memory ends with this process.
  Draft draft(const std::string& name, std::span<const TensorSpec> tensors, Device device = kCpu,
              const PublishOptions& options = {});
  /// Makes memory for a version with the layout, the key and the attributes of the object's current version.
  Draft draft(const std::string& name, std::uint32_t keep = PublishOptions{}.keep);
  /// Publishes the tensors, which are all on one device: on the host if memory of the device would end with this process.
  std::uint64_t publish(const std::string& name, std::span<const NamedTensor> tensors,
                        const PublishOptions& options = {});

  /// Opens a draft of another process by its handle(). Throws stale_handle for one that was published or given up.
  Draft join_draft(const std::string& handle);
  /// Begins a transaction. Other processes take part with join().
  Transaction transaction();
  /// Takes part in a transaction by its handle(). Throws stale_handle for one that has ended.
  Transaction join(const std::string& handle);

  /// Opens a version, the current one by default. Throws stale_handle if the version does not exist. Throws
  /// invalid_argument, naming the field, if the version's key lacks a field of `key` or has another value of it.
  Version open(const std::string& name, std::optional<std::uint64_t> number = {}, const Texts& key = {});
  /// Opens the current version at addresses where update() shows other versions. Throws as open(), and invalid_argument for a
  /// version that was published as_is.
  Follower follow(const std::string& name, const Texts& key = {});
  /// Watches an object, which need not exist yet, on a connection of its own.
  Watch watch(const std::string& name);

  /// Opens a namespace of the KV pool of that name. Makes the KV pool, which stays until remove(), and the namespace if they
  /// do not exist. Throws invalid_argument for other sizes than they have, another device, and for an object;
  /// out_of_memory; unsupported for a device whose memory ends with its process; and what pin() throws.
  KvPool kv_pool(const std::string& name, const KvPoolOptions& options);
  /// Returns the numbers of each namespace of a KV pool. Throws stale_handle, and invalid_argument for an object.
  std::vector<KvPoolStats> kv_pool_stats(const std::string& name);
  std::vector<ObjectInfo> list();
  /// Makes an earlier version the current one again. Throws stale_handle.
  void rollback(const std::string& name, std::uint64_t number);
  /// Drops all versions but the `keep` that were current last. Readers keep what they have mapped.
  void remove(const std::string& name, std::uint32_t keep = 0);
  KeeperInfo keeper();
  /// Ends the keeper, and returns when its processes have ended, after at most ten seconds. Memory that no process has
  /// mapped is then gone.
  void stop();

 private:
  explicit Store(std::shared_ptr<Client> client) noexcept : client_(std::move(client)) {}
  Client& client();
  Draft open_draft(std::shared_ptr<Membership> membership, const std::array<std::uint8_t, 16>& draft);
  Draft filled_draft(const std::string& name, std::span<const NamedTensor> tensors,
                     const PublishOptions& options);
  friend class Transaction;
  friend class Group;

  std::shared_ptr<Client> client_;  // shared with the opened versions, drafts and watches
};

}  // namespace onecopy::store
ONECOPY_API_END
#include "onecopy/store/group.h"        // whose classes need those above
#include "onecopy/store/transaction.h"  // as well
