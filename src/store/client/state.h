// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "onecopy/store/store.h"
#include "os/mapping.h"
#include "os/mutex.h"
#include "store/client/client.h"
#include "store/client/mapped_memory.h"
#include "store/client/membership.h"
#include "store/format/record.h"
#include "store/format/table.h"

namespace onecopy::store {

/// The state of the objects of the public API: a table and memory. What differs between the versions that a follower shows
/// is in MappedMemory::shown(). Thread safety: as these objects.
struct Contents::State {
  State(Table rows_and_more, BlockRef mapped)
      : table(std::move(rows_and_more)),
        block(std::move(mapped)),
        memory(static_cast<MappedMemory*>(block.group())) {}

  Table table;   ///< the whole table of a draft; the rows of a version
  Bytes layout;  ///< the layout of a follower's table, which is compared with the next one
  std::shared_ptr<Client> client;
  const BlockRef block;
  MappedMemory* const memory;  ///< the memory of `block`
  VersionRecord version;       ///< of a draft
  ReservedRoom reservation;    ///< of a draft
  Mutex update;                ///< held during an update
  BlockRef prepared;  ///< the memory of the version that a follower shows next; guarded by `update`
  bool is_sealed = false;
  std::shared_ptr<Membership>
      membership;          ///< in the transaction of a draft, shared with others; may be null
  bool is_shared = false;  ///< the keeper has the memory of the draft
  bool commits = false;    ///< the draft is all of its transaction, which publish() commits
  bool is_joined = false;  ///< another process publishes the draft
  std::unordered_map<std::string_view, std::size_t> rows;  ///< made by find()
  std::once_flag rows_made;
};

/// A question on a link of its own, which the keeper answers when the object changes. Thread safety: none.
struct Watch::State {
  State(std::shared_ptr<Client> asks, std::string object)
      : client(std::move(asks)), name(std::move(object)) {}

  void connect();

  std::shared_ptr<Client> client;  // shared with stores; starts the keeper if there is none
  const std::string name;
  std::optional<Link> link;
  bool has_asked = false;  ///< the keeper has not answered yet
  Token known{};           ///< the token of the last version that was returned
};

/// A table that is read from a descriptor. The constructor throws bad_handle.
struct OpenTable {
  explicit OpenTable(const Fd& fd, ByteSpan known = {});

  ByteSpan layout() const noexcept { return layout_of({bytes.data(), bytes.size()}); }

  Mapping bytes;
  Table table;
};

/// Maps the open file of a table. Throws bad_handle if the file is not a sealed table.
Mapping map_table(const Fd& fd);
/// Returns a sealed memfd that contains the table.
Fd write_table(const Table& table);
/// Returns the parts of the memory that a table describes. `files`: the descriptors of the version, which are the
/// table, the chunks and others. Throws bad_handle if there are too few.
std::vector<ExportedMemory> memory_of(const Table& table, std::vector<Fd> files);
Device device_of(const Table& table);
/// Throws bad_handle if a process could still change memory of the host that the version's publisher says was copied.
/// `files`: the descriptors of the version.
void check_sealed(const VersionRecord& version, const Table& table, std::span<const Fd> files);

/// Throws invalid_argument for a version that cannot be followed, because its memory is not one part of its own.
void check_followed(const VersionRecord& version);

/// Makes exported memory the only part of the table.
void describe(ExportedMemory& exported, Table& table);
/// Returns a record without a number, for one attempt to publish.
VersionRecord record_of(const std::string& name, Device device, std::uint64_t bytes, std::uint32_t keep);
/// Returns a table without rows and memory.
Table table_for(Device device, const PublishOptions& options);

/// Asks the keeper to publish a version, with the table and then the given descriptors. Returns the version's number, 0 for
/// a part of a transaction.
std::uint64_t publish_version(Client& client, const Table& table, const VersionRecord& version,
                              std::span<const Fd> fds, const Token& transaction = {});

/// Returns a checksum of bytes of a device.
std::uint32_t checksum(std::byte* at, std::uint64_t bytes, Device device);
/// Returns a checksum of each row.
std::vector<std::uint32_t> checksums_of(const Table& table, const MappedMemory& memory);

}  // namespace onecopy::store
