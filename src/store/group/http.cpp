// SPDX-License-Identifier: Apache-2.0
#include "store/group/http.h"

#include <fmt/format.h>

#include <type_traits>

#include "core/throw_error.h"
#include "onecopy/core/error.h"
#include "os/shared_library.h"

#if __has_include(<curl/curl.h>) && !defined(ONECOPY_WITHOUT_ETCD)

#include <curl/curl.h>

namespace onecopy::store::group {
namespace {

/// The functions of libcurl that are used here.
struct Curl {
  decltype(&::curl_global_init) global_init;
  decltype(&::curl_easy_init) init;
  decltype(&::curl_easy_reset) reset;
  decltype(&::curl_easy_setopt) set;
  decltype(&::curl_easy_perform) perform;
  decltype(&::curl_easy_getinfo) info;
  decltype(&::curl_easy_strerror) text;
  decltype(&::curl_easy_cleanup) cleanup;
  decltype(&::curl_slist_append) append;
  decltype(&::curl_slist_free_all) free_all;
};

Curl load_curl() {
  std::string why;
  const auto library = SharedLibrary::open({"libcurl.so.4", "libcurl-gnutls.so.4"}, &why);
  if (!library)
    throw_error(ErrorCode::unsupported, "etcd needs libcurl, which is not here (Debian: libcurl4): {}",
                why);
  Curl curl{};
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(library->symbol(name));
    if (!function)
      throw_error(ErrorCode::unsupported, "etcd needs libcurl with {}, which {} has not", name,
                  library->name());
  };
  find(curl.global_init, "curl_global_init");
  find(curl.init, "curl_easy_init");
  find(curl.reset, "curl_easy_reset");
  find(curl.set, "curl_easy_setopt");
  find(curl.perform, "curl_easy_perform");
  find(curl.info, "curl_easy_getinfo");
  find(curl.text, "curl_easy_strerror");
  find(curl.cleanup, "curl_easy_cleanup");
  find(curl.append, "curl_slist_append");
  find(curl.free_all, "curl_slist_free_all");
  curl.global_init(CURL_GLOBAL_DEFAULT);
  return curl;
}

const Curl& curl() {
  static const Curl loaded = load_curl();
  return loaded;
}

std::size_t write(char* data, std::size_t one, std::size_t count, void* to) {
  constexpr std::size_t kMaxAnswer = std::size_t{64} << 20;
  auto& request = *static_cast<HttpRequest*>(to);
  if (request.received) {
    request.answer.clear();
    request.received();
  }
  if (request.answer.size() + one * count > kMaxAnswer) return 0;
  request.answer.append(data, one * count);
  return one * count;
}

int progress(void* of, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  const auto& request = *static_cast<HttpRequest*>(of);
  return request.is_over && request.is_over() ? 1 : 0;
}

bool is_unsent(CURLcode code) noexcept {
  return code == CURLE_COULDNT_CONNECT || code == CURLE_COULDNT_RESOLVE_HOST ||
         code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CONNECT_ERROR ||
         code == CURLE_SSL_CACERT_BADFILE;
}

}  // namespace

Http::Http() : handle_(curl().init()) {
  if (!handle_) throw Error(ErrorCode::out_of_memory, "libcurl has no memory for a connection");
}

Http::~Http() { curl().cleanup(handle_); }

void Http::post(HttpRequest& request) {
  request.answer.clear();
  request.failure.clear();
  request.status = 0;
  curl().reset(handle_);  // which keeps the connections
  const auto set = [&](CURLoption option, auto value) { curl().set(handle_, option, value); };
  set(CURLOPT_URL, request.url.c_str());
  set(CURLOPT_POSTFIELDSIZE, static_cast<long>(request.body.size()));
  set(CURLOPT_COPYPOSTFIELDS, request.body.c_str());
  set(CURLOPT_NOSIGNAL, 1L);
  set(CURLOPT_PROXY, "");
  set(CURLOPT_FRESH_CONNECT,
      request.may_repeat ? 0L : 1L);  // libcurl sends again what a kept connection loses
  set(CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(request.patience.count()));
  if (!request.received) set(CURLOPT_TIMEOUT_MS, static_cast<long>(request.patience.count()));
  set(CURLOPT_TCP_KEEPALIVE, 1L);
  set(CURLOPT_TCP_KEEPIDLE, 5L);
  set(CURLOPT_TCP_KEEPINTVL, 2L);
  if (!request.ca_file.empty()) set(CURLOPT_CAINFO, request.ca_file.c_str());
  set(CURLOPT_WRITEFUNCTION, &write);
  set(CURLOPT_WRITEDATA, static_cast<void*>(&request));
  set(CURLOPT_NOPROGRESS, 0L);
  set(CURLOPT_XFERINFOFUNCTION, &progress);
  set(CURLOPT_XFERINFODATA, static_cast<void*>(&request));
  curl_slist* headers = curl().append(nullptr, "Content-Type: application/json");
  headers = curl().append(headers, "Expect:");
  if (!request.authorization.empty())
    headers = curl().append(headers, ("Authorization: " + request.authorization).c_str());
  set(CURLOPT_HTTPHEADER, headers);
  const CURLcode code = curl().perform(handle_);
  curl().free_all(headers);
  curl().info(handle_, CURLINFO_RESPONSE_CODE, &request.status);
  if (code != CURLE_OK) request.failure = curl().text(code);
  request.is_unsent = is_unsent(code);
}

}  // namespace onecopy::store::group

#else

namespace onecopy::store::group {

Http::Http() : handle_(nullptr) {
  throw Error(ErrorCode::unsupported,
              "this onecopy was built without the headers of libcurl, and cannot ask etcd: install them "
              "(Debian: libcurl4-openssl-dev), and build it again");
}
Http::~Http() = default;
void Http::post(HttpRequest&) {}

}  // namespace onecopy::store::group

#endif
