// SPDX-License-Identifier: Apache-2.0
#include "store/client/reading.h"

#include <sys/resource.h>

#include <atomic>

#include "onecopy/core/error.h"
#include "os/log.h"
#include "store/client/client.h"
#include "store/client/state.h"

namespace onecopy::store {
namespace {

/// The number of descriptors that readings of this process keep.
std::atomic<std::size_t> kept_descriptors{0};

constexpr std::size_t kUsually = 2;  ///< descriptors of a version: its table and its memory

std::size_t max_kept() noexcept {
  rlimit limit{};
  return ::getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur / 4 : 0;
}

void tell_of_unkept() {
  static std::atomic<bool> is_told{false};
  if (!is_told.exchange(true))
    log_info(
        "this process reads so many versions of the store that it cannot bring all of them back if both "
        "halves of the keeper are killed; raise `ulimit -n`");
}

}  // namespace

ReadVersion::ReadVersion(VersionRecord read, Token keeper_of_it, std::vector<Fd> received, bool keeps)
    : version(std::move(read)),
      keeper(keeper_of_it),
      table(map_table(received.front())),
      files(std::move(received)) {
  if (keeps || version.needs_files()) kept = files.size();
  else tell_of_unkept();
  kept_descriptors += kept;
}

bool ReadVersion::may_keep_more() noexcept { return kept_descriptors + kUsually <= max_kept(); }

ReadVersion::~ReadVersion() { kept_descriptors -= kept; }

std::vector<Fd> Reading::files() const {
  if (read_->kept == 0) return std::move(read_->files);
  std::vector<Fd> files;
  for (const Fd& file : read_->files) files.push_back(file.duplicate());
  return files;
}

std::vector<Fd> Reading::files_for_others() const {
  if (read_->kept != 0) return files();
  std::shared_ptr<Client> client = client_;
  const auto again = Client::here(client).open(read_->version.name, read_->version.number, nullptr,
                                               Deadline::after(kKeeperPatience));
  if (again->version().token != read_->version.token) return {};
  return again->files();
}

/// Ends the lock, then lets the keeper look.
void Reading::end() noexcept {
  read_.reset();
  client_->note(pack(Poll{}));
}

}  // namespace onecopy::store
