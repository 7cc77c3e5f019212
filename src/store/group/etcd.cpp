// SPDX-License-Identifier: Apache-2.0
#include "store/group/etcd.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <span>
#include <utility>

#include "core/base64.h"
#include "core/throw_error.h"
#include "onecopy/core/error.h"
#include "os/file.h"

namespace onecopy::store::group {

using nlohmann::json;

namespace {

constexpr long kUnauthorized = 401, kMaxOk = 299;

/// Returns whether the status says that etcd has not come to an end with the request: it has no leader, or another one than before.
bool is_unfinished(long status) noexcept { return status == 408 || status >= 500; }

/// Returns bytes in base64 with padding, as JSON has them.
std::string to_base64(const std::string& bytes) {
  std::string text;
  append_base64url(std::as_bytes(std::span(bytes)), text);
  std::ranges::replace(text, '-', '+');
  std::ranges::replace(text, '_', '/');
  return text + std::string((4 - text.size() % 4) % 4, '=');
}
std::string from_base64(std::string text) {
  text.erase(std::min(text.find('='), text.size()));
  std::ranges::replace(text, '+', '-');
  std::ranges::replace(text, '/', '_');
  Bytes bytes;
  decode_base64url(text, bytes);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// Returns the text of a number: the gateway writes numbers of 64 bits as texts.
std::string text_of(std::int64_t number) { return std::to_string(number); }

/// Returns a number that the gateway wrote as a text, and left out for 0.
std::int64_t number_in(const json& answer, const char* field) {
  const auto at = answer.find(field);
  if (at == answer.end()) return 0;
  return at->is_string() ? std::stoll(at->get<std::string>()) : at->get<std::int64_t>();
}

/// Returns the words of an answer that is an error.
std::string words_of(const std::string& body, long status) {
  const json answer = json::parse(body, nullptr, false);
  if (answer.is_object())
    for (const char* const field : {"message", "error"})
      if (const auto at = answer.find(field); at != answer.end() && at->is_string())
        return at->get<std::string>();
  return fmt::format("status {} of HTTP", status);
}

}  // namespace

Etcd::Etcd(EtcdOptions options) : options_(std::move(options)) {
  if (options_.endpoints.empty())
    throw Error(ErrorCode::invalid_argument, "give the URL of etcd, such as http://10.0.0.1:2379");
  for (const std::string& endpoint : options_.endpoints)
    if (!endpoint.starts_with("http://") && !endpoint.starts_with("https://"))
      throw_error(ErrorCode::invalid_argument,
                  "\"{}\" is not the URL of etcd, such as http://10.0.0.1:2379", endpoint);
  if (options_.login_file.empty()) return;
  login_ = try_read_text(options_.login_file).value_or("");
  while (!login_.empty() && (login_.back() == '\n' || login_.back() == '\r')) login_.pop_back();
  if (login_.find(':') == std::string::npos)
    throw_error(ErrorCode::invalid_argument, "{} cannot be read, or has no line USER:PASSWORD",
                options_.login_file);
}

/// Sends a request to an endpoint. One without a leader is one that does not answer.
void Etcd::post(const std::string& endpoint, const char* path, HttpRequest& request) {
  request.url = endpoint + path;
  request.authorization = token_;
  request.ca_file = options_.ca_file;
  request.patience = options_.patience;
  http_.post(request);
  if (request.failure.empty() && is_unfinished(request.status))
    request.failure = words_of(request.answer, request.status);
  if (!request.failure.empty()) request.failure = fmt::format("{}: {}", endpoint, request.failure);
}

/// Logs in. Returns false, with the failure in the request that needs the login, if the endpoint does not answer.
bool Etcd::try_log_in(const std::string& endpoint, HttpRequest& needs) {
  const std::size_t colon = login_.find(':');
  HttpRequest request;
  request.body = json{{"name", login_.substr(0, colon)}, {"password", login_.substr(colon + 1)}}.dump();
  token_.clear();
  post(endpoint, "/v3/auth/authenticate", request);
  needs.failure = request.failure;
  needs.is_unsent = request.is_unsent;
  if (!request.failure.empty()) return false;
  const json answer = json::parse(request.answer, nullptr, false);
  if (request.status > kMaxOk || !answer.is_object() || !answer.contains("token"))
    throw_error(ErrorCode::bad_secret, "etcd at {} refuses the user of {}: {}", endpoint,
                options_.login_file, words_of(request.answer, request.status));
  token_ = answer["token"].get<std::string>();
  return true;
}

/// Sends a request to an endpoint, and logs in if that is needed.
void Etcd::post_logged_in(const std::string& endpoint, const char* path, HttpRequest& request) {
  for (const bool is_again : {false, true}) {
    const bool needs_login = !login_.empty() && (is_again || token_.empty());
    if (needs_login && !try_log_in(endpoint, request)) return;
    post(endpoint, path, request);
    if (!request.failure.empty() || request.status != kUnauthorized || login_.empty()) return;
  }
}

/// Sends a request to the endpoints, one after another, until one answers. That one is asked first from then on.
void Etcd::send(const char* path, HttpRequest& request) {
  std::vector<std::string> failures;
  bool is_reached = false;
  while (failures.size() < options_.endpoints.size()) {
    const std::string& endpoint = options_.endpoints[next_];
    post_logged_in(endpoint, path, request);
    if (request.failure.empty()) {
      if (request.status <= kMaxOk) return;
      throw_error(ErrorCode::system, "etcd at {} says: {}", endpoint,
                  words_of(request.answer, request.status));
    }
    failures.push_back(request.failure);
    is_reached = is_reached || !request.is_unsent;
    next_ = (next_ + 1) % options_.endpoints.size();
    if ((!request.is_unsent && !request.may_repeat) || (request.is_over && request.is_over())) break;
  }
  throw_error(is_reached ? ErrorCode::timeout : ErrorCode::peer_died, "{}: {}", kNoAnswer,
              fmt::join(failures, "; "));
}

json Etcd::ask(const char* path, const json& question, bool may_repeat) {
  HttpRequest request;
  request.body = question.dump();
  request.may_repeat = may_repeat;
  send(path, request);
  json answer = json::parse(request.answer, nullptr, false);
  if (!answer.is_object()) throw_error(ErrorCode::protocol, "etcd answers {} with what is no JSON", path);
  return answer;
}

std::vector<KeyValue> Etcd::read(const std::vector<Keys>& wanted) {
  json ranges = json::array();
  for (const auto& [from, to] : wanted)
    ranges.push_back({{"request_range", {{"key", to_base64(from)}, {"range_end", to_base64(to)}}}});
  const json answer = ask("/v3/kv/txn", {{"success", ranges}});
  std::vector<KeyValue> found;
  for (const json& range : answer.value("responses", json::array()))
    for (const json& one : range.at("response_range").value("kvs", json::array()))
      found.push_back({from_base64(one.value("key", "")), from_base64(one.value("value", "")),
                       number_in(one, "mod_revision")});
  return found;
}

bool Etcd::change(const Change& change) {
  json when = json::array(), then = json::array();
  for (const auto& [key, changed] : change.when)
    when.push_back({{"key", to_base64(key)},
                    {"target", "MOD"},
                    {"result", "EQUAL"},
                    {"mod_revision", text_of(changed)}});
  for (const auto& [key, value, lease] : change.put)
    then.push_back({{"request_put",
                     {{"key", to_base64(key)}, {"value", to_base64(value)}, {"lease", text_of(lease)}}}});
  for (const std::string& key : change.remove)
    then.push_back({{"request_delete_range", {{"key", to_base64(key)}}}});
  return ask("/v3/kv/txn", {{"compare", when}, {"success", then}}, false).value("succeeded", false);
}

std::int64_t Etcd::grant(std::chrono::seconds time) {
  return number_in(ask("/v3/lease/grant", {{"TTL", text_of(time.count())}}), "ID");
}

bool Etcd::renew(std::int64_t lease) {
  const json answer = ask("/v3/lease/keepalive", {{"ID", text_of(lease)}});
  return number_in(answer.value("result", json::object()), "TTL") > 0;
}

void Etcd::revoke(std::int64_t lease) { ask("/v3/lease/revoke", {{"ID", text_of(lease)}}); }

std::vector<std::string> Etcd::alarms() {
  std::vector<std::string> words;
  const json answer = ask("/v3/maintenance/alarm", {{"action", "GET"}});
  for (const json& one : answer.value("alarms", json::array())) words.push_back(one.value("alarm", "?"));
  return words;
}

std::optional<std::int64_t> Etcd::uncompacted() {
  try {
    const json answer = ask("/v3/kv/range", {{"key", to_base64("/")}, {"revision", "1"}});
    return number_in(answer.value("header", json::object()), "revision");
  } catch (const Error& error) {
    if (std::string_view(error.what()).find("compacted") == std::string_view::npos) throw;
    return {};
  }
}

void Etcd::watch(const std::string& from, const std::string& to, const std::function<void()>& changed,
                 const std::function<bool()>& is_over) {
  HttpRequest request;
  request.body = json{{"create_request", {{"key", to_base64(from)}, {"range_end", to_base64(to)}}}}.dump();
  request.received = changed;
  request.is_over = is_over;
  try {
    send("/v3/watch", request);
  } catch (const Error&) {
    if (!is_over()) throw;
  }
}

}  // namespace onecopy::store::group
