// SPDX-License-Identifier: Apache-2.0
#include "store/client/membership.h"

#include <algorithm>
#include <charconv>
#include <span>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "onecopy/core/error.h"
#include "os/memfd.h"
#include "os/random.h"

namespace onecopy::store {
namespace {

constexpr std::size_t kFileBytes = 4096;

}  // namespace

Membership::Membership(std::shared_ptr<Client> client, const Token& transaction, const Token& member,
                       std::chrono::seconds away)
    : client_(std::move(client)), transaction_(transaction), member_(member) {
  const Fd file = create_memfd("onecopy-store-member", kFileBytes);
  mark_ = std::make_unique<ProgramMark>(file);
  VersionRecord record;
  record.token = member;
  record.keep = static_cast<std::uint32_t>(away.count());
  const int fd = file.get();
  client_->ask<Done>(Join{record, transaction}, std::span(&fd, 1));
}

std::shared_ptr<Membership> Membership::join(std::shared_ptr<Client> client, const Token& transaction) {
  return std::shared_ptr<Membership>(new Membership(std::move(client), transaction, random_value<Token>()));
}

std::shared_ptr<Membership> Membership::begin(std::shared_ptr<Client> client) {
  const Token token = random_value<Token>();
  return std::shared_ptr<Membership>(new Membership(std::move(client), token, token));
}

std::shared_ptr<Membership> Membership::carry(std::shared_ptr<Client> client, const Token& transaction,
                                              bool begins, std::chrono::seconds away) {
  return std::shared_ptr<Membership>(
      new Membership(std::move(client), transaction, begins ? transaction : random_value<Token>(), away));
}

Membership::~Membership() {
  if (pid_ != current_pid()) {
    static_cast<void>(mark_.release());  // other memory may lie at its address in this forked child
    return;
  }
  mark_.reset();
  client_->note(pack(Poll{}));
}

std::uint64_t Membership::conclude(Conclude::How how) {
  return Client::here(client_).ask<Published>(Conclude{transaction_, member_, how}).number;
}

std::string text_of(const Token& token) { return fmt::format("{:02x}", fmt::join(token, "")); }

Token take_token(std::string_view& text) {
  Token token{};
  for (std::uint8_t& byte : token) {
    const auto [end, error] =
        std::from_chars(text.data(), text.data() + std::min<std::size_t>(text.size(), 2), byte, 16);
    if (error != std::errc() || end != text.data() + 2)
      throw Error(ErrorCode::bad_handle,
                  "the text is not the handle of a draft or a transaction of the store");
    text.remove_prefix(2);
  }
  return token;
}

}  // namespace onecopy::store
