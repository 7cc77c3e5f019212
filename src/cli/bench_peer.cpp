// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <string>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "child.h"
#include "commands.h"
#include "measure.h"
#include "onecopy/channel/queue.h"
#include "onecopy/core/error.h"
#include "onecopy/share/share.h"
#include "os/file.h"
#include "ping_pong.h"

namespace onecopy::cli {
namespace {

using Json = nlohmann::json;

Handle handle_of(const Json& question) {
  return Handle::from_text(question.at("handle").get<std::string>());
}

/// Measures the first open of an owner, and later opens of the same block with their release.
Json open_and_release(const Json& question) {
  const Handle handle = handle_of(question);
  const auto start = std::chrono::steady_clock::now();
  const Tensor first = onecopy::open(handle);
  const std::chrono::duration<double, std::nano> first_time = std::chrono::steady_clock::now() - start;
  const double later = median_ns(31, 10000, [&](int rounds) {
    for (int i = 0; i < rounds; ++i) onecopy::open(handle);
  });
  return {{"first", first_time.count()}, {"later", later}};
}

Json answer_pings(const Json& question) {
  const Tensor tensor = onecopy::open(handle_of(question));
  PingPong::in(tensor).pong();
  return Json::object();
}

/// Opens the parent's pipe ends through /proc, because neither process inherits descriptors.
Json answer_bytes(const Json& question) {
  const auto open_end = [&](const char* end, int flags) {
    return open_file(fmt::format("/proc/{}/fd/{}", ::getppid(), question.at(end).get<int>()), flags);
  };
  const Fd from = open_end("from", O_RDONLY);
  const Fd to = open_end("to", O_WRONLY);
  for (char byte = 1; byte != 0;)
    if (::read(from.get(), &byte, 1) != 1 || ::write(to.get(), &byte, 1) != 1) break;
  return Json::object();
}

/// Sends every tensor back until a message without one arrives.
Json return_tensors(const Json& question) {
  Queue from = Queue::connect(Handle::from_text(question.at("from").get<std::string>()));
  Queue to = Queue::connect(Handle::from_text(question.at("to").get<std::string>()));
  for (Message message = from.get(); !message.tensors.empty(); message = from.get())
    to.put(message.tensors.front());
  return Json::object();
}

Json answer_of(const Json& question) {
  const auto what = question.at("do").get<std::string>();
  if (what == "open") return open_and_release(question);
  if (what == "pong") return answer_pings(question);
  if (what == "queue") return return_tensors(question);
  if (what == "bytes") return answer_bytes(question);
  throw Error(ErrorCode::protocol, "unknown question: " + what);
}

}  // namespace

void add_bench_peer(CLI::App& app, Command& command) {
  auto* sub = app.add_subcommand("bench-peer", "The other process of onecopy bench");
  sub->group("");  // hidden from users
  sub->callback([&command] { command = [] { return serve_questions(answer_of); }; });
}

}  // namespace onecopy::cli
