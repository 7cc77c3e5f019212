// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "onecopy/core/error.h"
#include "os/deadline.h"
#include "store/group/directory.h"
#include "store/group/records.h"

/// The decisions of publishers and hosts of a group, without processes, memory and network. tests/model/hosts.pml is the model.
namespace onecopy::store::group {

/// The next step of a host with an object.
enum class Step : std::uint8_t {
  none,    ///< the group's version is shown
  show,    ///< the group's version is whole here: the host notes it, then shows it
  fetch,   ///< the group's version is missing here
  remove,  ///< the object is deleted
  stop,    ///< the directory has an older change than this host has shown: it has lost data
};
/// The state of an object on a host.
struct Local {
  Current noted;          ///< the last change that was shown here
  bool is_shown = false;  ///< the group's version is current here; for a deleted object: nothing is
  bool is_whole = false;  ///< the group's version is here
};
/// Returns what a host does when the directory says that `current` is current: it shows the newest change whose version it has
/// whole, and never an older one than it has shown.
Step step_for(const Current& current, const Local& local) noexcept;

/// Returns whether the directory may have carried a change out, although the call has thrown.
bool is_without_answer(const Error& error) noexcept;

/// Returns what `ask` returns. Calls it again until `until` after errors that may pass, which are those without an answer.
/// REQUIRES: `ask` may be repeated.
template <class Ask>
auto ask_until(Deadline until, const Ask& ask,
               bool (*may_pass)(const Error&) noexcept = &is_without_answer) {
  constexpr std::chrono::milliseconds kPause{100};
  for (;;) {
    try {
      return ask();
    } catch (const Error& error) {
      if (!may_pass(error) || until.has_passed()) throw;
    }
    std::this_thread::sleep_for(until.left(kPause));
  }
}

/// A change of what is current, which the directory carries out or does not.
struct Attempt {
  enum class Outcome : std::uint8_t {
    committed,
    refused,  ///< a condition did not hold, and nothing has changed
    unknown,  ///< the directory has not answered: the change may have been carried out, or may be yet
  };

  std::string name;
  Current wanted;
  Change change;

  /// Carries the change out. If no answer comes, looks until `until` whether it was carried out, and asks for the same change again, whose conditions hold once at most.
  Outcome carry_out(Directory& directory, const Records& records, Deadline until) const;
};

/// Makes an older version current again, or none for number 0. Returns the attempt, which fails if another change comes first.
Attempt rollback_of(const Records& records, const Records::View& view, const std::string& name,
                    std::uint64_t number, const Token& token);

/// A lease, which is to be renewed.
/// Guarantees. has_ended() is true before the directory ends the lease, unless this process was stopped between has_ended() and the
/// use of the lease. Thread safety: none.
class Lease {
 public:
  static constexpr std::chrono::seconds kTime{10};

  explicit Lease(Directory& directory) : directory_(directory) {}

  /// Begins a new lease, in place of the one before.
  void begin();
  /// Renews the lease if it is time to.
  void tend();
  /// Returns whether the lease has ended, or was not renewed for half of its time, so that it may end.
  bool has_ended() const noexcept { return id_ == 0 || renewed_until_.has_passed(); }
  std::int64_t id() const noexcept { return id_; }
  void end() noexcept;

 private:
  Directory& directory_;
  std::int64_t id_ = 0;
  Deadline renewed_until_ = kNow, renew_at_ = kNow;
};

/// The right to publish an object in the group, and the way of one version to being current.
/// Thread safety: none.
class Publication {
 public:
  /// `token`: random.
  Publication(Directory& directory, const Records& records, std::string name, Stage stage);
  ~Publication();
  Publication& operator=(Publication&&) = delete;

  /// Returns whether this publication has the right now. Otherwise another one has it: call again later.
  bool try_begin(const Records::View& view);
  /// REQUIRES: try_begin() has returned true.
  const Stage& stage() const noexcept { return stage_; }
  /// Keeps the right. Throws superseded if it was lost.
  void tend();

  /// The reports of the hosts.
  struct Progress {
    std::map<std::string, std::int64_t>
        whole;  ///< hosts that have all of the version, with KeyValue::changed
    std::map<std::string, std::pair<ErrorCode, std::string>>
        problems;        ///< hosts that cannot have it, and why
    Records::View view;  ///< the group at the same moment
  };
  /// Asks the directory once.
  Progress progress();
  /// Throws superseded if the object has changed since the right was got, so that hosts do not take the version, or the right was lost.
  void check_turn(const Records::View& view) const;
  /// Returns whether the hosts show the version, or a later one.
  bool is_shown(const std::map<std::string, std::int64_t>& hosts);
  /// Makes the version current if the hosts still have it. Returns refused if a host has it no longer: look at progress() again. Throws superseded if the object has changed meanwhile.
  Attempt::Outcome try_commit(const std::map<std::string, std::int64_t>& hosts, Deadline until);

 private:
  Attempt attempt(const std::map<std::string, std::int64_t>& hosts) const;

  Directory& directory_;
  const Records& records_;
  const std::string name_;
  Stage stage_;
  Lease lease_;
  std::string id_;  ///< of the group
  std::int64_t staged_ = 0, seen_ = 0;
};

/// Returns what is wrong with the directory from the view of a host that remembers so much; empty if nothing is.
std::string what_is_lost(const Records::View& view, const std::string& group_id,
                         const std::map<std::string, Current>& noted);

/// Returns the highest protocol that all hosts which are present speak. Throws version_mismatch, with their names, if there is none.
unsigned protocol_of(const std::map<std::string, Keyed<Present>>& hosts);

/// Returns the hosts from which one pulls a version, in order: towards the publisher first, so that hosts form a chain, which goes from
/// rack to rack.
std::vector<std::string> sources_of(const std::map<std::string, Keyed<Present>>& hosts,
                                    const std::string& publisher, const std::string& self);

}  // namespace onecopy::store::group
