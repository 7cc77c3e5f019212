// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "os/hmac.h"
#include "os/unix_socket.h"
#include "store/format/place.h"

namespace onecopy::store {

/// The places of a running keeper: it holds the lock of each directory that can be made, listens in the first one (its home),
/// and keeps links to that in the others. Both halves of the keeper have a copy, which inherits the descriptors.
/// Thread safety: none.
class HeldPlaces {
 public:
  enum class State : std::uint8_t { whole, made_again, lost };

  HeldPlaces() = default;
  explicit HeldPlaces(Places places) : places_(std::move(places)) { locks_.resize(places_.all().size()); }
  /// The places of a keeper that this process replaces, whose descriptors came with its answer.
  HeldPlaces(Places places, const std::string& home, std::vector<Fd> descriptors);

  /// Locks the places, and takes the abstract name. Returns false, with nothing taken, if another keeper has one of them.
  /// Throws other_user, system.
  bool try_take();
  /// Listens in the home. Then reads or makes the secret, and makes the links. REQUIRES: try_take() returned true.
  std::pair<UnixSocket, Digest> listen();
  /// Checks all places, and makes again what is missing of them. Returns a new `listener` if clients cannot reach
  /// the present one. `lost`: no directory can be made. Throws system, out_of_memory.
  State look(std::optional<UnixSocket>& listener, const Digest& secret);
  /// Tells the processes that rang, after look().
  void answer_bell();
  /// Removes the socket and the links.
  void leave() const noexcept;

  const Places& places() const noexcept { return places_; }
  const Place& home() const noexcept { return places_.all()[home_]; }
  /// Returns the path of the index that was written last in one of the places, since keepers with other environments have
  /// other homes; a path in the home if there is none.
  std::string index() const;
  int bell() const noexcept { return bell_.fd(); }
  /// The descriptors that another half or keeper needs to hold the places: see the constructor and adopt().
  std::vector<int> descriptors() const;
  /// Takes the descriptors of the other half, which has made places again.
  void adopt(std::vector<Fd> descriptors);

 private:
  using File = std::pair<std::uint64_t, std::uint64_t>;  ///< device and inode

  static std::optional<File> file_at(const std::string& path) noexcept;
  bool lock_places(bool is_start);
  void find_home() noexcept;
  bool lock_files();
  bool take_bell();
  UnixSocket bind();
  bool leads_here(const Place& place, const Digest& secret) const noexcept;
  void link_others(const Digest& secret) const;

  Places places_{Place("")};
  std::vector<Fd> locks_;  ///< of each place; empty for one that cannot be made
  std::vector<Fd> kept_;   ///< locks of lock_files(), and of places that this process does not know
  std::size_t home_ = 0;
  std::optional<File> socket_;
  UnixSocket bell_;
};

}  // namespace onecopy::store
