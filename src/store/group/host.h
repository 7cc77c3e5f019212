// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "store/ferry/pull.h"
#include "store/group/config.h"
#include "store/group/doorbell.h"
#include "store/group/fetches.h"
#include "store/group/remembered.h"
#include "store/group/rules.h"

namespace onecopy::store::group {

/// This host as a member of a group: brings versions that a publisher stages, says when they are whole, and shows those that are current
/// in the group.
///
/// Guarantees. The host shows what the group has made current, whole, in the order of generations; never an older generation than
/// it has shown, also after a restart of the machine. A version that was shown stays here until all members that reach etcd show a
/// later one. While etcd does not answer, or has lost changes, nothing changes here.
///
/// Mechanism. One thread reads the group's keys whenever a watch tells of a change, and every few seconds. Another thread has the watch,
/// whose content it ignores: what counts is what is read. Further threads bring versions, see Fetches.
///
/// Thread safety: none.
class Host {
 public:
  /// `joins`: makes the host a member; otherwise it is one only if nobody has made it leave. Throws bad_file, and what Etcd throws.
  Host(Config config, ConnectOptions keeper, bool joins);
  ~Host();

  /// Returns once `is_over` returns true.
  void run(const std::function<bool()>& is_over);

 private:
  using Chosen = ferry::Pull::Chosen;
  struct EarlierVersion {
    std::uint64_t generation;  ///< at which the version was shown here
    Reading reading;
  };

  void poll();
  void note_answer();
  void sign();
  void put(const std::string& key, const std::string& value, std::int64_t lease = 0);
  void check_group();
  void be_present();
  void be_member();
  void stop(const std::string& problem);
  void say(const std::string& problem);
  void stage(const std::string& name, const Stage& stage);
  void try_to_follow(const std::string& name, const Current& current);
  void follow(const std::string& name, const Current& current);
  bool show(const std::string& name, const Current& current, ferry::Pull& pull);
  void end_fetches();
  void fetch(const std::string& name, const Chosen& chosen, const std::string& publisher);
  void refuse(const std::string& name, const Stage& stage, const Error& error);
  void complain(const std::string& name, const Error& error);
  bool is_staged(const std::string& name, const Token& version) const;
  static bool is_wanted(const Records::View& view, const std::string& name, const Token& version);
  void keep_shown(const std::string& name);
  void release_earlier();
  void report_shown(const std::string& name, const Current& current, ferry::Pull& pull);
  void report(const std::string& name, const Report& report);
  void drop_stages();
  std::optional<ferry::Pull> pull(
      const std::string& name, const std::string& publisher, std::function<void()> between_chunks = [] {});

  Config config_;
  const ConnectOptions keeper_;
  const Records records_;
  Etcd etcd_;
  Remembered remembered_;
  Lease lease_;
  std::shared_ptr<Client> client_;  // shared with its readings
  std::string home_;
  bool joins_, has_signed_ = false;
  Records::View view_;
  std::map<std::string, std::string> reported_;  ///< the reports under the present lease, by object
  std::map<std::string, Token> staged_;          ///< what was staged here, by object
  std::map<std::string, std::uint64_t> shown_;   ///< the generations that are shown here, by object
  std::map<std::string, Deadline>
      retry_at_;  ///< the times before which a failed fetch is not repeated, by object
  std::multimap<std::string, EarlierVersion> earlier_;  ///< versions that were shown here before, by object
  Deadline renew_at_ = kNow;                     ///< the time to say again that what is staged is to stay
  bool is_soon_ = false;                         ///< something is to be tried again soon
  std::map<std::string, std::string> problems_;  ///< of objects, as far as the user was told
  std::string said_, told_, failed_, unnoted_;
  std::optional<Doorbell> doorbell_;
  Fetches fetches_{[this] { doorbell_->ring(); }};
};

}  // namespace onecopy::store::group
