// SPDX-License-Identifier: Apache-2.0
#include "onecopy/store/transaction.h"

#include <string_view>

#include "core/moved_from.h"
#include "core/point.h"
#include "onecopy/core/error.h"
#include "store/client/state.h"

namespace onecopy::store {
namespace {

void check_end(std::string_view rest, const char* what) {
  if (!rest.empty())
    throw Error(ErrorCode::bad_handle, std::string("the text is not the handle of ") + what);
}

}  // namespace

Contents::State& Draft::state() const {
  if (!state_)
    throw Error(
        ErrorCode::closed,
        "this draft has ended, or was moved from: use the object that it was moved to, or make a draft");
  return *state_;
}

std::string Draft::handle() {
  State& s = state();
  if (s.is_sealed) throw Error(ErrorCode::invalid_argument, "the draft is published already");
  const LockGuard lock(s.update);
  if (!s.membership) {
    s.membership = Membership::begin(Client::here(s.client).shared_from_this());
    s.commits = true;
  }
  if (!s.is_shared && !s.is_joined) {
    ExportedMemory exported = s.memory->export_chunks(Access::read_write);
    Table table = s.table;
    describe(exported, table);
    VersionRecord record = s.version;
    record.kind = VersionKind::draft;
    publish_version(Client::here(s.client), table, record, exported.fds, s.membership->transaction());
    s.is_shared = true;
  }
  return text_of(s.membership->transaction()) + text_of(s.version.token);
}

void Draft::set_bytes(const std::string& name, std::string content) {
  State& s = state();
  if (s.is_joined || s.is_sealed)
    throw Error(ErrorCode::invalid_argument,
                "bytes are added by the process that made the draft, before it publishes");
  s.table.bytes[name] = std::move(content);
}

void Draft::done() {
  if (!state().is_joined)
    throw Error(ErrorCode::invalid_argument,
                "this process made the draft, and publishes it; done() is for the others");
  const auto membership = state_->membership;
  state_.reset();
  membership->conclude(Conclude::How::leave);
}

void Draft::abort() {
  const auto membership = state().membership;
  state_.reset();
  if (membership) membership->conclude(Conclude::How::abort);
}

Draft Store::join_draft(const std::string& handle) {
  std::string_view rest = handle;
  const Token transaction = take_token(rest), draft = take_token(rest);
  check_end(rest, "a draft");
  const auto membership = Membership::join(client().shared_from_this(), transaction);
  try {
    return open_draft(membership, draft);
  } catch (const Error&) {
    membership->conclude(Conclude::How::leave);  // this process has written nothing
    throw;
  }
}

Draft Store::open_draft(std::shared_ptr<Membership> membership, const Token& draft) {
  Packet packet = client().ask_for_files(OpenDraft{membership->transaction(), draft});
  const VersionRecord version = unpack<Opened>(packet.bytes).version;
  if (packet.fds.empty())
    throw Error(ErrorCode::protocol, "the store's keeper sent a draft without its memory");
  Table table = OpenTable(packet.fds.front()).table;
  const Device device = device_of(table);
  std::vector<ExportedMemory> parts = memory_of(table, std::move(packet.fds));
  BlockRef memory = MappedMemory::open(device, std::move(parts), {{}, version, {}}, Access::read_write);
  auto state = std::make_shared<Contents::State>(std::move(table), std::move(memory));
  state->client = client().shared_from_this();
  state->version = version;
  state->membership = std::move(membership);
  state->is_joined = true;
  return Draft(std::move(state));
}

Transaction Store::transaction() { return {*this, Membership::begin(client().shared_from_this())}; }

Transaction Store::join(const std::string& handle) {
  std::string_view rest = handle;
  const Token transaction = take_token(rest);
  check_end(rest, "a transaction");
  return {*this, Membership::join(client().shared_from_this(), transaction)};
}

Membership& Transaction::membership() const { return of_object(membership_, "Transaction"); }

std::string Transaction::handle() const { return text_of(membership().transaction()); }

void Transaction::add(Draft& draft) const {
  auto& s = draft.state();
  if (s.membership || s.is_sealed)
    throw Error(ErrorCode::invalid_argument,
                "the draft is published, or other processes write it: make it in the transaction");
  of_object(membership_, "Transaction");
  s.membership = membership_;
}

void Transaction::publish(const std::string& name, std::span<const NamedTensor> tensors,
                          const PublishOptions& options) {
  if (options.place == Placement::as_is)
    throw Error(ErrorCode::unsupported, "a transaction copies its tensors; publish as_is without one");
  Draft draft = store_.filled_draft(name, tensors, options);
  add(draft);
  draft.publish();
}

std::uint64_t Transaction::commit() {
  point("store.transaction.commit");
  return membership().conclude(Conclude::How::commit);
}

void Transaction::leave() { membership().conclude(Conclude::How::leave); }
void Transaction::abort() { membership().conclude(Conclude::How::abort); }

}  // namespace onecopy::store
