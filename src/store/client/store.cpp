// SPDX-License-Identifier: Apache-2.0
#include "onecopy/store/store.h"

#include <fmt/format.h>
#include <poll.h>

#include <utility>

#include "core/moved_from.h"
#include "core/throw_error.h"
#include "onecopy/memory/copy.h"
#include "os/deadline.h"
#include "os/process.h"
#include "os/random.h"
#include "store/client/as_is.h"
#include "store/client/group_mark.h"
#include "store/client/kv_pool_files.h"
#include "store/client/state.h"
#include "store/format/record.h"
#include "store/format/tied_tensors.h"

namespace onecopy::store {
namespace {

void check_key(const Texts& key, const Texts& wanted, const VersionRecord& version) {
  for (const auto& [field, value] : wanted) {
    const auto at = key.find(field);
    if (at != key.end() && at->second == value) continue;
    throw_error(ErrorCode::invalid_argument,
                "version {} of \"{}\" has {} for the field \"{}\" of its key, and \"{}\" was asked for",
                version.number, version.name,
                at == key.end() ? "nothing" : fmt::format("\"{}\"", at->second), field, value);
  }
}

/// Throws invalid_argument for a KV pool.
void check_object(const VersionRecord& version) {
  if (version.kind == VersionKind::kv_pool)
    throw_error(ErrorCode::invalid_argument, "\"{}\" is a KV pool: open it with kv_pool()", version.name);
}

void check_request(const std::string& name, std::size_t tensors, const PublishOptions& options) {
  check_name(name);
  if (tensors == 0 && options.bytes.empty())
    throw_error(ErrorCode::invalid_argument,
                "no tensor is given for a version of \"{}\"; give one and more", name);
  if (options.keep == 0)
    throw Error(ErrorCode::invalid_argument,
                "keep is 0, and the new version itself counts; give 1 and more");
}

/// Throws invalid_argument unless `same_as` is nothing or the number of a tensor with the same layout and memory of its own.
void check_same_memory(std::span<const TensorSpec> before, const std::string& name, const Layout& layout,
                       std::optional<std::size_t> same_as) {
  if (!same_as) return;
  if (*same_as < before.size() && !before[*same_as].same_as && before[*same_as].layout == layout) return;
  throw_error(ErrorCode::invalid_argument,
              "\"{}\" cannot share the memory of tensor {}: that must be a tensor before it, with "
              "the same layout and with memory of its own",
              name, *same_as);
}

std::uint64_t publish_as_is(Client& client, const std::string& name, std::span<const NamedTensor> tensors,
                            const PublishOptions& options) {
  check_request(name, tensors.size(), options);
  const Device device = tensors.front().second.device();
  AsIs memory(tensors, options.copies);
  backend(device.type).finish_work();
  Table table = table_for(device, options);
  memory.describe(table, options.checksums);
  check_names(table.rows);
  size_of_bytes(table);
  // What is kept is whole segments, of which the tensors may be small parts.
  VersionRecord version = record_of(name, device, table.size, options.keep);
  version.kind = VersionKind::as_is;
  const std::vector<Fd> files = memory.keep_and_export();
  return publish_version(client, table, version, files);
}

constexpr std::chrono::milliseconds kEndOfTheKeeper = std::chrono::seconds(10);

/// Returns a descriptor that becomes readable when the process ends; an empty one if the process has ended, or the
/// kernel does not know pidfds.
Fd end_of(int pid) noexcept {
  try {
    return open_pidfd(pid);
  } catch (const Error&) {
    return {};
  }
}

}  // namespace

VersionRecord record_of(const std::string& name, Device device, std::uint64_t bytes, std::uint32_t keep) {
  VersionRecord version;
  version.name = name;
  version.token = random_value<Token>();
  version.bytes = bytes;
  version.device = device.str();
  version.keep = keep;
  return version;
}

Table table_for(Device device, const PublishOptions& options) {
  Table table;
  table.key = options.key;
  table.attributes = options.attributes;
  table.bytes = options.bytes;
  table.device_type = static_cast<std::uint8_t>(device.type);
  table.device = uuid_of(device).bytes;
  return table;
}

Store Store::connect(const ConnectOptions& options) {
  auto client = std::make_shared<Client>(StoreDirectories::of_this_user(), options);
  client->welcome(Deadline::after(kKeeperPatience));
  return Store(std::move(client));
}

Client& Store::client() {
  of_object(client_, "Store");
  return Client::here(client_);
}

Draft Store::draft(const std::string& name, std::span<const TensorSpec> tensors, Device device,
                   const PublishOptions& options) {
  check_request(name, tensors.size(), options);
  check_outlives_its_maker(device);
  Table table = table_for(device, options);
  std::vector<std::size_t> first;
  for (const auto& [row, layout, same_as] : tensors) {
    if (!layout.is_contiguous())
      throw_error(ErrorCode::invalid_argument, "\"{}\" is {}, which is not row-major", row, layout.str());
    check_same_memory(tensors.first(first.size()), row, layout, same_as);
    first.push_back(same_as.value_or(first.size()));
    table.rows.push_back({row, Layout(layout.dtype(), layout.shape()), 0});
  }
  const std::uint64_t bytes = assign_offsets(table.rows, first);
  size_of_bytes(table);
  if (options.checksums) table.checksums.resize(table.rows.size());
  const VersionRecord version =
      record_of(name, device, MappedMemory::size_for(device, bytes), options.keep);
  ReservedRoom reservation = client().reserve(version, Deadline::after(kKeeperPatience));
  auto state = std::make_shared<Contents::State>(std::move(table), MappedMemory::create(device, bytes));
  state->table.size = state->memory->size();
  state->client = client().shared_from_this();
  state->version = version;
  state->reservation = std::move(reservation);
  return Draft(std::move(state));
}

Draft Store::draft(const std::string& name, std::uint32_t keep) {
  const auto reading = client().open(name, 0, nullptr, Deadline::after(kKeeperPatience));
  check_object(reading->version());
  const Table table = OpenTable(reading->files().front()).table;
  std::vector<TensorSpec> tensors;
  const std::vector<std::size_t> first = first_of_each(table.rows);
  for (std::size_t at = 0; at < first.size(); ++at)
    tensors.push_back({table.rows[at].name, table.rows[at].layout,
                       first[at] < at ? std::optional(first[at]) : std::nullopt});
  return draft(name, tensors, device_of(table),
               {keep, table.key, table.attributes, {}, !table.checksums.empty()});
}

std::uint64_t Store::publish(const std::string& name, std::span<const NamedTensor> tensors,
                             const PublishOptions& options) {
  if (options.place == Placement::as_is) return publish_as_is(client(), name, tensors, options);
  return filled_draft(name, tensors, options).publish();
}

/// Returns a draft that contains copies of the tensors.
Draft Store::filled_draft(const std::string& name, std::span<const NamedTensor> tensors,
                          const PublishOptions& options) {
  std::vector<TensorSpec> specs;
  TiedTensors tied;
  for (const auto& [row, tensor] : tensors)
    specs.push_back({row, Layout(tensor.dtype(), tensor.shape()),
                     tied.first(tensor.data(), tensor.layout(), specs.size())});
  Device device = tensors.empty() ? kCpu : tensors.front().second.device();
  if (!outlives_its_maker(device)) device = kCpu;
  Draft draft = this->draft(name, specs, device, options);
  for (std::size_t row = 0; row < tensors.size(); ++row)
    if (tensors[row].second.nbytes() != 0 && !specs[row].same_as)
      copy_into(tensors[row].second.view(), draft.tensor(row).view());
  return draft;
}

Version Store::open(const std::string& name, std::optional<std::uint64_t> number, const Texts& key) {
  if (number == 0) throw Error(ErrorCode::invalid_argument, "versions are numbered from 1");
  auto reading = client().open(name, number.value_or(0), nullptr, Deadline::after(kKeeperPatience));
  const VersionRecord version = reading->version();
  check_object(version);
  std::vector<Fd> files = reading->files();
  OpenTable opened(files.front());
  check_key(opened.table.key, key, version);
  check_sealed(version, opened.table, files);
  Table rows;
  rows.rows = std::exchange(opened.table.rows, {});
  const Device device = device_of(opened.table);
  std::vector<ExportedMemory> parts = memory_of(opened.table, std::move(files));
  BlockRef memory =
      MappedMemory::open(device, std::move(parts), {std::move(opened.table), version, std::move(*reading)});
  auto state = std::make_shared<Contents::State>(std::move(rows), std::move(memory));
  const ByteSpan layout = opened.layout();
  state->layout.assign(layout.begin(), layout.end());
  state->client = client().shared_from_this();
  return Version(std::move(state));
}

Follower Store::follow(const std::string& name, const Texts& key) {
  const Version version = open(name, {}, key);
  check_followed(version.state_->memory->shown()->version);
  return Follower(version.state_);
}

Watch Store::watch(const std::string& name) {
  check_name(name);
  return Watch(std::make_unique<Watch::State>(client().shared_from_this(), name));
}

std::vector<ObjectInfo> Store::list() {
  std::vector<ObjectInfo> objects;
  for (List from;;) {
    const auto listing = client().ask<Listing>(from);
    if (listing.objects.empty()) return objects;
    for (const ListedObject& listed : listing.objects) {
      if (objects.empty() || objects.back().name != listed.name)
        objects.push_back({listed.name, 0, false, {}});
      objects.back().current = listed.current;
      objects.back().is_kv_pool = listed.is_kv_pool;
      for (const ListedVersion& v : listed.versions)
        objects.back().versions.push_back(
            {v.number, v.bytes, v.made_at, v.publisher, v.readers, v.unkept, v.device, !v.is_here});
    }
    from = {objects.back().name, listing.objects.back().versions.back().number};
  }
}

void Store::rollback(const std::string& name, std::uint64_t number) {
  if (number == 0) throw Error(ErrorCode::invalid_argument, "versions are numbered from 1");
  check_not_of_group(client(), name, "roll it back in the group");
  client().ask<Done>(Rollback{name, number});
}

void Store::remove(const std::string& name, std::uint32_t keep) {
  check_not_of_group(client(), name, "delete it in the group");
  if (keep == 0) KvPoolFiles::remove(client().home(Deadline::after(kKeeperPatience)), name);
  client().ask<Done>(Remove{name, keep});
}

KeeperInfo Store::keeper() {
  const auto info = client().ask<Welcome>(Describe{});
  return {info.worker, info.guard};
}

void Store::stop() {
  const KeeperInfo halves = keeper();
  const std::array ends = {end_of(halves.worker), end_of(halves.guard)};
  client().ask<Done>(Stop{});
  const Deadline until = Deadline::after(kEndOfTheKeeper);
  for (const Fd& end : ends)
    if (end) until.wait_for(end.get(), POLLIN);
}

}  // namespace onecopy::store
