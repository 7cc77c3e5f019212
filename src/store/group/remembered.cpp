// SPDX-License-Identifier: Apache-2.0
#include "store/group/remembered.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "core/throw_error.h"
#include "onecopy/core/error.h"
#include "os/file.h"
#include "os/random.h"
#include "os/replacing_file.h"
#include "store/client/membership.h"

namespace onecopy::store::group {

using nlohmann::json;

std::string random_id() { return store::text_of(random_value<Token>()); }

Remembered::Remembered(std::string path) : path_(std::move(path)), host_id_(random_id()) {
  struct stat status {};
  if (::stat(path_.c_str(), &status) != 0) {
    if (errno != ENOENT) throw_errno("cannot look at " + path_, errno);
    write();
    return;
  }
  const auto text = try_read_text(path_);
  if (!text) throw Error(ErrorCode::bad_file, path_ + " cannot be read");
  read(*text);
}

void Remembered::read(const std::string& text) {
  try {
    const json all = json::parse(text);
    host_id_ = all.at("host");
    group_id_ = all.at("group");
    for (const auto& [name, one] : all.at("shown").items()) {
      const auto token = one.at("token").get<std::string>();
      std::string_view rest = token;
      all_[name] = {one.at("number"), one.at("newest"), one.at("generation"), take_token(rest)};
    }
  } catch (const std::exception& error) {
    throw_error(ErrorCode::bad_file,
                "{} does not say what this host has shown, so that it could show an older version: "
                "remove the file only if no other host of the group has a later generation ({})",
                path_, error.what());
  }
}

Remembered Remembered::from_text(const std::string& text) {
  Remembered remembered;
  remembered.path_ = "what a host of the group remembers";
  remembered.read(text);
  return remembered;
}

Current Remembered::of(const std::string& name) const {
  const auto at = all_.find(name);
  return at == all_.end() ? Current{} : at->second;
}

void Remembered::join(const std::string& group_id) {
  const std::string before = std::exchange(group_id_, group_id);
  try {
    write();
  } catch (...) {
    group_id_ = before;
    throw;
  }
}

void Remembered::note(const std::string& name, const Current& current) {
  const auto before = all_;
  all_[name] = current;
  try {
    write();
  } catch (...) {
    all_ = before;
    throw;
  }
}

std::string Remembered::text() const {
  json shown = json::object();
  for (const auto& [name, one] : all_)
    shown[name] = {{"number", one.number},
                   {"newest", one.newest},
                   {"generation", one.generation},
                   {"token", store::text_of(one.token)}};
  return json{{"host", host_id_}, {"group", group_id_}, {"shown", shown}}.dump();
}

void Remembered::write() const {
  const std::string content = text();
  replace_file(path_, std::as_bytes(std::span(content)), true);
}

}  // namespace onecopy::store::group
