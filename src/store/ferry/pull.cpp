// SPDX-License-Identifier: Apache-2.0
#include "store/ferry/pull.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <thread>
#include <utility>

#include "onecopy/core/error.h"
#include "os/hmac.h"
#include "os/log.h"
#include "os/random.h"
#include "store/client/state.h"
#include "store/ferry/host_key.h"

namespace onecopy::store::ferry {
namespace {

constexpr std::chrono::milliseconds kConnectPatience{5'000}, kAway{5'000}, kLockPause{5};

std::uint64_t number_for(const HostAddress& host) {
  const std::string& text = host.str();
  const Digest digest = sha256(std::as_bytes(std::span(text)));
  return load<std::uint64_t>(std::as_bytes(std::span(digest)).data());
}

/// Returns whether a host may give the version later.
bool may_pass(const Error& error, bool follows) noexcept {
  switch (error.code()) {
    case ErrorCode::peer_died:
    case ErrorCode::timeout:
    case ErrorCode::system:
    case ErrorCode::protocol:
    case ErrorCode::bad_file: return true;
    case ErrorCode::stale_handle:
    case ErrorCode::out_of_memory:
    case ErrorCode::out_of_descriptors: return follows;
    default: return false;
  }
}

}  // namespace

Pull::Pull(PullOptions options)
    : options_(std::move(options)),
      client_(std::make_shared<Client>(options_.directories, options_.keeper)),
      origins_(client_->home(Deadline::after(kKeeperPatience)), options_.name),
      is_over_ucx_(is_over_ucx()) {
  check_name(options_.name);
  for (const Bytes& key : options_.keys)
    contexts_.push_back(std::make_shared<const transport::TlsContext>(key, kStoreProtocol));
  for (const HostAddress& at : options_.sources) sources_.push_back({at, {}, {}, kNow});
  while (!origins_.try_lock() && !options_.lock_until.has_passed()) {
    options_.between_chunks();
    std::this_thread::sleep_for(kLockPause);
  }
  if (!origins_.try_lock())
    throw Error(ErrorCode::invalid_argument,
                fmt::format("another process of this host pulls \"{}\"", options_.name));
}

std::optional<Pulled> Pull::next(std::chrono::milliseconds wait) {
  std::exception_ptr last;
  for (Source& source : sources_) {
    if (sources_.size() > 1 && source.away_until.at() > std::chrono::steady_clock::now()) continue;
    try {
      return next_of(source, wait);
    } catch (const Error& error) {
      log_debug(fmt::format("{} is of no help now: {}", source.at.str(), error.what()));
      if (!last || error.code() != ErrorCode::stale_handle) last = std::current_exception();
      leave(source);
    }
  }
  if (last) std::rethrow_exception(last);
  throw Error(ErrorCode::peer_died, "no host answers now");
}

std::optional<Pulled> Pull::next(std::chrono::milliseconds wait, const Retries& retries) {
  constexpr std::chrono::milliseconds kPause{300};
  Deadline until = Deadline::after(retries.max_away);
  for (std::string last;;) {
    const std::uint64_t before = taken_;
    try {
      return next(wait);
    } catch (const Error& error) {
      if (taken_ != before) until = Deadline::after(retries.max_away);
      if (!may_pass(error, retries.follows) || until.has_passed()) throw;
      if (last != error.what()) retries.failed(error);
      last = error.what();
    }
    options_.between_chunks();
    std::this_thread::sleep_for(kPause);
  }
}

void Pull::leave(Source& source) noexcept {
  source.pipe.reset();
  source.stream.reset();
  source.away_until = Deadline::after(kAway);
}

std::optional<Pulled> Pull::next_of(Source& source, std::chrono::milliseconds wait) {
  const auto shown = shown_origin();
  const Told told = poll(source, options_.number, shown.value_or(Token{}), wait);
  if (told.is_known || told.version == shown) return {};
  check_order(source, told);
  return bring(source, told);
}

/// REQUIRES: there is a key.
Stream Pull::connect(const HostAddress& to) const {
  for (auto context = contexts_.begin();; ++context) {
    try {
      return Stream::connect(to, *context, Deadline::after(kConnectPatience));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::bad_secret || std::next(context) == contexts_.end()) throw;
    }
  }
}

/// Lets the bytes of chunks come over UCX. Throws unsupported if the other host refuses.
void Pull::begin_pipe(Source& source) const {
  auto pipe = transport::make_pipe(kFabric, source.stream->fd());
  source.stream->send_message(Carry{kProtocol, Question::carry, pipe->address()}, options_.patience);
  const auto carried = source.stream->receive_message<Carried>(options_.patience);
  if (!carried.refusal.empty()) throw Error(ErrorCode::unsupported, source.at.str() + carried.refusal);
  pipe->connect(carried.address);
  source.pipe = std::move(pipe);
}

/// Asks a host for its version. Throws the error that the host answers.
Told Pull::poll(Source& source, std::uint64_t number, const Token& known, std::chrono::milliseconds wait) {
  if (!source.stream) source.stream = connect(source.at);
  if (!source.pipe && is_over_ucx_) begin_pipe(source);
  const auto wait_ms = static_cast<std::uint32_t>(wait.count());
  source.stream->send_message(Poll{kProtocol, Question::poll, options_.name, number, known, wait_ms},
                              options_.patience);
  Told told = source.stream->receive_message<Told>(wait + options_.patience);
  if (const auto error = told.error())
    throw Error(*error, fmt::format("{}: {}", source.at.str(), told.text));
  return told;
}

/// Returns the version that is current here; nothing if there is none. Throws invalid_argument for one that was published here.
std::optional<Token> Pull::shown_origin() {
  const auto local = token_of(*client_, options_.name, 0);
  if (!local) return {};
  const auto pairs = origins_.pairs();
  const auto at = std::ranges::find(pairs, *local, &Origins::Pair::local);
  if (at != pairs.end()) return at->origin;
  throw Error(
      ErrorCode::invalid_argument,
      fmt::format(
          "\"{}\" has versions that were published on this host, and would get older ones from another "
          "host: remove it here with `onecopy store rm`, or pull on hosts that do not publish it",
          options_.name));
}

/// Throws stale_handle for a version that may be older than one that was shown here. Only the host that a newer one came from
/// knows that it was rolled back.
void Pull::check_order(const Source& source, const Told& told) const {
  const auto pairs = origins_.pairs();
  if (pairs.empty()) return;
  const std::uint64_t newest = std::ranges::max_element(pairs, {}, &Origins::Pair::number)->number;
  const Origins::Pair& last = pairs.back();
  if (told.number > newest || last.source == number_for(source.at) || last.origin == told.version) return;
  throw Error(
      ErrorCode::stale_handle,
      fmt::format(
          "{} has version {} of \"{}\", and this host has had version {} from another host: only that "
          "one can say that an older version is to be shown again",
          source.at.str(), told.number, options_.name, newest));
}

Pulled Pull::bring(Source& source, const Told& told) {
  Pulled pulled;
  drop_arriving_unless([&](const Token& version) { return version == told.version; });
  auto arrival = find_arrival(told.version);
  if (const auto number = arrival ? std::nullopt : show_again(source, told)) return {*number, 0, 0, false};
  if (!arrival) arrival = begin(source, told);
  pulled.bytes = arrival->bytes();
  pulled.is_new = true;
  const std::uint64_t before = taken_;
  take_all(source, told, *arrival);
  pulled.taken = taken_ - before;
  pulled.number = arrival->commit();
  return pulled;
}

/// Makes a version current that is here already. Returns its number; nothing if it is not here.
std::optional<std::uint64_t> Pull::show_again(const Source& source, const Told& told) {
  const auto here = find_here(told.version);
  if (!here) return {};
  client_->ask<Done>(Rollback{options_.name, here->number});
  origins_.add({told.version, here->local, told.number, number_for(source.at)});
  return here->number;
}

/// Notes the version before it has a draft, so that another process finds what has arrived, and afterwards, so that hosts that
/// pull from this one look at it. A version for which there is no room leaves no note, however often it is tried.
Arrival Pull::begin(const Source& source, const Told& told) {
  const Origins::Pair pair{told.version, random_value<Token>(), told.number & ~kExactNumber,
                           number_for(source.at)};
  Table table = decode_table(told.table);
  Arrival arrival =
      Arrival::begin(client_, pair.local, {options_.name, told.number, told.keep, std::move(table)},
                     [&] { origins_.add(pair); });
  origins_.add(pair);
  return arrival;
}

}  // namespace onecopy::store::ferry
