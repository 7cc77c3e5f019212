// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "os/deadline.h"
#include "store/group/directory.h"
#include "store/group/http.h"

namespace onecopy::store::group {

struct EtcdOptions {
  std::vector<std::string> endpoints;  ///< such as https://10.0.0.1:2379; the first that answers is asked
  std::string ca_file;     ///< the certificates of who signs for https endpoints; empty: the system's
  std::string login_file;  ///< a file with USER:PASSWORD; empty: none
  std::chrono::milliseconds patience{2'000};  ///< the time for an answer of one endpoint
};

/// A client of etcd 3.4 and later, over its JSON gateway, by libcurl, which is loaded when the first client is made.
///
/// Guarantees. Each call ends within the patience for each endpoint. A change is sent once, unless it is certain that no endpoint got it. A login that
/// has expired is renewed. An etcd without a leader counts as one that does not answer.
///
/// Thread safety: none.
class Etcd final : public Directory {
 public:
  static constexpr const char* kNoAnswer = "etcd does not answer";  ///< how such an error begins

  /// Throws unsupported without libcurl, and invalid_argument for endpoints that are not URLs or a file that cannot be read.
  explicit Etcd(EtcdOptions options);

  std::vector<KeyValue> read(const std::vector<Keys>& wanted) override;
  bool change(const Change& change) override;
  std::int64_t grant(std::chrono::seconds time) override;
  bool renew(std::int64_t lease) override;
  void revoke(std::int64_t lease) override;

  /// Returns the alarms of etcd in its own words, such as NOSPACE.
  std::vector<std::string> alarms();
  /// Returns the number of changes that etcd keeps; nothing if it has ever dropped old ones.
  std::optional<std::int64_t> uncompacted();

  /// Calls `changed` once etcd watches the keys from `from` to before `to`, and after each change of them, until the watch ends
  /// or `is_over` returns true. Throws as the other members.
  void watch(const std::string& from, const std::string& to, const std::function<void()>& changed,
             const std::function<bool()>& is_over);

 private:
  nlohmann::json ask(const char* path, const nlohmann::json& question, bool may_repeat = true);
  void send(const char* path, HttpRequest& request);
  void post(const std::string& endpoint, const char* path, HttpRequest& request);
  void post_logged_in(const std::string& endpoint, const char* path, HttpRequest& request);
  bool try_log_in(const std::string& endpoint, HttpRequest& needs);

  const EtcdOptions options_;
  std::string login_;     ///< USER:PASSWORD
  std::string token_;     ///< of the login; empty before it
  std::size_t next_ = 0;  ///< the endpoint that is asked first
  Http http_;
};

}  // namespace onecopy::store::group
