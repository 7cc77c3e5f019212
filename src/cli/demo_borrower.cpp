// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "child.h"
#include "commands.h"
#include "onecopy/core/bytes.h"
#include "onecopy/core/error.h"
#include "onecopy/share/bundle.h"

namespace onecopy::cli {
namespace {

using Json = nlohmann::json;

/// The tensors that this process borrows.
std::optional<Bundle> borrowed_bundle;
std::vector<Tensor> borrowed;

Json open_everything(const std::string& text) {
  const auto start = std::chrono::steady_clock::now();
  borrowed_bundle = Bundle::open(Handle::from_text(text));
  borrowed.reserve(borrowed_bundle->size());
  std::uint64_t bytes = 0;
  for (std::size_t row = 0; row < borrowed_bundle->size(); ++row) {
    borrowed.push_back(borrowed_bundle->tensor(row));
    bytes += borrowed.back().nbytes();
  }
  const std::chrono::nanoseconds duration = std::chrono::steady_clock::now() - start;
  return {{"ns", duration.count()}, {"tensors", borrowed.size()}, {"bytes", bytes}};
}

Json checksum() {
  std::uint32_t crc = 0;
  for (const Tensor& tensor : borrowed)
    crc = crc32c(ByteSpan(tensor.as<std::byte>(), tensor.nbytes()), crc);
  return {{"crc", crc}};
}

Json first_byte(const Json& question) {
  auto* byte = borrowed.at(question.at("row").get<std::size_t>()).as<std::uint8_t>();
  if (question.contains("store")) *byte = question["store"].get<std::uint8_t>();
  return {{"value", *byte}};
}

Json answer_to(const Json& question) {
  const auto what = question.at("do").get<std::string>();
  if (what == "open") return open_everything(question.at("handle").get<std::string>());
  if (what == "checksum") return checksum();
  if (what == "byte") return first_byte(question);
  throw Error(ErrorCode::protocol, "unknown question: " + what);
}

}  // namespace

void add_demo_borrower(CLI::App& app, Command& command) {
  auto* sub = app.add_subcommand("demo-borrower", "One of the borrowers of onecopy demo");
  sub->group("");  // hidden from users
  sub->callback([&command] {
    command = [] {
      const int status = serve_questions(answer_to);
      borrowed.clear();
      borrowed_bundle.reset();
      return status;
    };
  });
}

}  // namespace onecopy::cli
