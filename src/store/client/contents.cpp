// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "core/moved_from.h"
#include "core/point.h"
#include "core/throw_error.h"
#include "os/log.h"
#include "store/client/group_mark.h"
#include "store/client/state.h"

namespace onecopy::store {

Contents::State& Contents::state() const { return of_object(state_, "object of the store"); }

std::size_t Contents::size() const { return state().table.rows.size(); }
const std::string& Contents::name(std::size_t row) const { return state().table.rows.at(row).name; }
const Layout& Contents::layout(std::size_t row) const { return state().table.rows.at(row).layout; }
std::uint64_t Contents::offset(std::size_t row) const { return state().table.rows.at(row).offset; }
Device Contents::device() const { return state().memory->device(); }

std::optional<std::size_t> Contents::find(std::string_view name) const {
  State& s = state();
  std::call_once(s.rows_made, [&s] {
    for (std::size_t row = 0; row < s.table.rows.size(); ++row) s.rows.emplace(s.table.rows[row].name, row);
  });
  const auto at = s.rows.find(name);
  return at == s.rows.end() ? std::nullopt : std::optional(at->second);
}

Tensor Contents::tensor(std::size_t row) const {
  const State& s = state();
  const MappedMemory& memory = *s.memory;
  return {s.block, memory.data() + offset(row), layout(row), memory.device(), memory.access()};
}

Tensor Contents::memory() const {
  const MappedMemory& memory = *state().memory;
  const Layout bytes(DType::u8, {static_cast<std::int64_t>(memory.size())});
  return {state().block, memory.data(), bytes, memory.device(), memory.access()};
}

std::uint64_t Version::number() const { return state().memory->shown()->version.number; }
Texts Version::key() const { return state().memory->shown()->table.key; }
Texts Version::attributes() const { return state().memory->shown()->table.attributes; }

std::vector<std::string> Version::names_of_bytes() const {
  std::vector<std::string> names;
  for (const auto& [name, content] : state().memory->shown()->table.bytes) names.push_back(name);
  return names;
}

std::optional<std::string> Version::bytes(const std::string& name) const {
  const auto shown = state().memory->shown();
  const auto at = shown->table.bytes.find(name);
  return at == shown->table.bytes.end() ? std::nullopt : std::optional(at->second);
}

int Version::descriptor() const {
  const auto shown = state().memory->shown();
  if (device() != kCpu || shown->version.kind != VersionKind::copied || shown->table.parts.size() != 1)
    throw_error(ErrorCode::unsupported, "version {} of \"{}\" has no memory of its own on the host",
                shown->version.number, shown->version.name);
  const auto reading =
      Client::here(state().client)
          .open(shown->version.name, shown->version.number, nullptr, Deadline::after(kKeeperPatience));
  return reading->files().at(1).release();
}

void Version::verify() const {
  const LockGuard lock(state().update);  // so that memory and checksums belong to one version
  const auto shown = state().memory->shown();
  const std::vector<std::uint32_t>& published = shown->table.checksums;
  if (published.empty() && size() != 0)
    throw_error(ErrorCode::invalid_argument, "version {} of \"{}\" was published without checksums",
                shown->version.number, shown->version.name);
  const auto now = checksums_of(state().table, *state().memory);
  for (std::size_t row = 0; row < size(); ++row)
    if (now[row] != published[row])
      throw_error(ErrorCode::bad_handle,
                  "\"{}\" of version {} of \"{}\" has the checksum {:08x}, and {:08x} was published",
                  name(row), shown->version.number, shown->version.name, now[row], published[row]);
}

void describe(ExportedMemory& exported, Table& table) {
  table.parts.clear();
  if (exported.size != 0)
    table.parts.push_back({exported.size, static_cast<std::uint32_t>(exported.fds.size()),
                           static_cast<std::uint8_t>(exported.kind), std::move(exported.blob)});
}

/// Makes the memory read-only for ever. Throws invalid_argument for a draft of another process.
void Draft::seal() {
  State& s = state();
  if (s.is_joined)
    throw Error(ErrorCode::invalid_argument,
                "a draft is published by the process that made it; call done() in the others");
  if (s.is_sealed) return;
  s.memory->protect();
  point("store.draft.sealed");
  if (s.table.checksums.size() == s.table.rows.size() && size() != 0)
    s.table.checksums = checksums_of(s.table, *s.memory);
  s.is_sealed = true;
}

std::uint64_t Draft::publish() {
  State& s = state();
  seal();
  ExportedMemory exported = s.memory->export_chunks();
  describe(exported, s.table);
  const Token transaction = s.membership ? s.membership->transaction() : Token{};
  VersionRecord version = s.version;
  version.bytes += size_of_bytes(s.table);
  const std::uint64_t number =
      publish_version(Client::here(s.client), s.table, version, exported.fds, transaction);
  return s.version.number = s.commits ? s.membership->conclude(Conclude::How::commit) : number;
}

std::uint64_t publish_version(Client& client, const Table& table, const VersionRecord& version,
                              std::span<const Fd> fds, const Token& transaction) {
  if (transaction != version.token)  // otherwise the version comes from another host, or goes to the group
    check_not_of_group(client, version.name, "publish it with everywhere=");
  const Fd file = write_table(table);
  std::vector<int> files = numbers_of(fds);
  files.insert(files.begin(), file.get());
  point("store.draft.written");
  const std::uint64_t number = client.ask<Published>(Publish{version, transaction}, files).number;
  point("store.draft.published");
  return number;
}

namespace {

/// Throws invalid_argument for a version that a follower cannot show which shows these rows in this memory.
void check_same_layout(const VersionRecord& version, const Table& table, const std::vector<Row>& rows,
                       const MappedMemory& memory) {
  check_followed(version);
  const auto refuse = [&](const std::string& problem) {
    throw_error(ErrorCode::invalid_argument, "version {} of \"{}\" {}; follow the object again",
                version.number, version.name, problem);
  };
  if (!table.has_known_layout) refuse("has another layout: " + first_difference(rows, table.rows));
  if (device_of(table) != memory.device()) refuse("is on another device");
}

}  // namespace

void check_followed(const VersionRecord& version) {
  if (version.kind != VersionKind::as_is) return;
  throw_error(ErrorCode::invalid_argument,
              "version {} of \"{}\" was published in place (as_is), so its tensors lie where the "
              "publisher has them, and cannot be shown at fixed addresses: open() it, or publish "
              "the versions of an object that is followed into slots",
              version.number, version.name);
}

namespace {

/// A version that a follower will show.
struct Next {
  std::vector<ExportedMemory> parts;
  Shown shown;
};

/// Returns the version `to`, or the current one unless that is `known`. `s`: the state of a follower.
template <class State>
std::optional<Next> next_of(State& s, const Shown& known, std::optional<std::uint64_t> to,
                            Deadline deadline, StepTimes& steps) {
  auto reading = Client::here(s.client).open(known.version.name, to.value_or(0), &known.reading, deadline);
  if (!reading) return std::nullopt;
  steps.end("keeper");
  std::vector<Fd> files = reading->files();
  OpenTable opened(files.front(), s.layout);
  VersionRecord version = reading->version();
  check_same_layout(version, opened.table, s.table.rows, *s.memory);
  check_sealed(version, opened.table, files);
  steps.end("table");
  std::vector<ExportedMemory> parts = memory_of(opened.table, std::move(files));
  return Next{std::move(parts), {std::move(opened.table), version, std::move(*reading)}};
}

MappedMemory& memory_in(const BlockRef& block) { return *static_cast<MappedMemory*>(block.group()); }

/// Maps a version of the host at addresses of its own, with its pages in the page tables.
BlockRef mapped(Next next, StepTimes& steps) {
  BlockRef block = MappedMemory::open(kCpu, std::move(next.parts), std::move(next.shown));
  memory_in(block).populate();
  steps.end("map");
  return block;
}

}  // namespace

std::uint64_t Follower::prepare(std::chrono::nanoseconds timeout, std::optional<std::uint64_t> to) {
  if (to == 0) throw Error(ErrorCode::invalid_argument, "versions are numbered from 1");
  State& s = state();
  const LockGuard lock(s.update);
  const auto known = s.prepared ? memory_in(s.prepared).shown() : s.memory->shown();
  if (s.memory->device() != kCpu || to == known->version.number) return known->version.number;
  StepTimes steps;
  std::optional<Next> next = next_of(s, *known, to, Deadline::after(timeout), steps);
  if (!next) return known->version.number;
  s.prepared = mapped(std::move(*next), steps);
  return memory_in(s.prepared).shown()->version.number;
}

std::uint64_t Follower::update(std::chrono::nanoseconds timeout, std::optional<std::uint64_t> to) {
  if (to == 0) throw Error(ErrorCode::invalid_argument, "versions are numbered from 1");
  State& s = state();
  const LockGuard lock(s.update);
  StepTimes steps;
  const auto shown = s.memory->shown();
  if (to == shown->version.number) return *to;
  const auto known = s.prepared ? memory_in(s.prepared).shown() : shown;
  if (to != known->version.number) {
    std::optional<Next> next = next_of(s, *known, to, Deadline::after(timeout), steps);
    if (!next && known == shown) return shown->version.number;
    if (next && s.memory->device() == kCpu) s.prepared = mapped(std::move(*next), steps);
    else if (next) s.memory->remap(std::move(next->parts), std::move(next->shown), steps);
  }
  if (const BlockRef prepared = std::exchange(s.prepared, {})) s.memory->take(memory_in(prepared));
  steps.end("show");
  const VersionRecord version = s.memory->shown()->version;
  log_debug([&] {
    return fmt::format("shows version {} of \"{}\", in milliseconds: {}", version.number, version.name,
                       steps.text());
  });
  return version.number;
}

}  // namespace onecopy::store
