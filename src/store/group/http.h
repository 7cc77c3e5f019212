// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <string>

namespace onecopy::store::group {

/// A question by POST, and the answer to it.
struct HttpRequest {
  std::string url, body;
  std::string authorization;  ///< empty: none
  std::string ca_file;        ///< the certificates that sign the server's; empty: the system's
  std::chrono::milliseconds patience{};
  bool may_repeat =
      true;  ///< false: is sent once, also if the server ends the connection without an answer
  std::function<void()>
      received;                   ///< if not empty: is called for each piece of an answer that does not end
  std::function<bool()> is_over;  ///< if not empty: is asked every second at least, and ends the wait

  std::string answer;
  long status = 0;
  std::string failure;     ///< of the connection; empty if an answer came
  bool is_unsent = false;  ///< the server has certainly not got the question
};

/// Connections to servers of HTTP and HTTPS, by libcurl, which is loaded when the first object is made.
/// Thread safety: none.
class Http {
 public:
  /// Throws unsupported without libcurl.
  Http();
  Http& operator=(Http&&) = delete;
  ~Http();

  /// Asks, and writes the answer or the failure into the request.
  void post(HttpRequest& request);

 private:
  void* handle_;
};

}  // namespace onecopy::store::group
