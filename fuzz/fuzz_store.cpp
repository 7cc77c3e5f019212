// SPDX-License-Identifier: Apache-2.0
// Messages, records and tables of the store. The input is a packet whose protocol is made right, a record, and a table whose
// checksum is made right, for random bytes would end there.
#include "fuzz_input.h"
#include "store/format/message.h"
#include "store/format/record.h"
#include "store/format/table.h"

namespace onecopy::fuzz {
namespace {

using namespace store;

/// Checks that a message that was read and written has the same bytes after another round.
template <class Message>
void check_message(Type type, ByteSpan packet) {
  if (type != Type{static_cast<std::uint32_t>(Message::kType)}) return;
  const auto message = accepted({ErrorCode::protocol}, [&] { return unpack<Message>(packet); });
  if (!message) return;
  const Bytes written = pack(*message);
  require(pack(unpack<Message>(written)) == written, "a message survives being written and read");
}

template <class... Messages>
void check_one_of(ByteSpan input) {
  Bytes packet(input.begin(), input.end());
  if (packet.size() >= 4) write_value(packet.data(), kProtocol.version);
  const auto type =
      accepted({ErrorCode::protocol, ErrorCode::version_mismatch}, [&] { return type_of(packet); });
  if (type) (check_message<Messages>(*type, packet), ...);
}

void check_record(ByteSpan bytes) {
  const auto record = accepted({ErrorCode::protocol}, [&] { return decode_record(bytes); });
  if (record)
    require(decode_record(encode(*record)) == *record, "a record survives being written and read");
}

void check_rows(const Table& table) {
  for (const Row& row : table.rows) {
    const std::uint64_t bytes = row.layout.nbytes();
    require(row.offset <= table.size && bytes <= table.size - row.offset, "a tensor lies in its memory");
  }
}

void check_table(ByteSpan input) {
  constexpr std::size_t kCheckedFrom = 12, kCrc = 8;
  Bytes bytes(input.begin(), input.end());
  if (bytes.size() >= kCheckedFrom)
    write_value(bytes.data() + kCrc, crc32c(ByteSpan(bytes).subspan(kCheckedFrom)));
  const auto table = accepted({ErrorCode::bad_handle}, [&] { return decode_table(bytes); });
  if (!table) return;
  check_rows(*table);
  const Bytes written = encode(*table);
  require(encode(decode_table(written)) == written, "a table survives being written and read");
  require(decode_table(bytes, layout_of(bytes)).rows.empty() || layout_of(bytes).empty(),
          "rows of a known layout are not read");
}

}  // namespace
}  // namespace onecopy::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace onecopy;
  using namespace onecopy::store;
  const ByteSpan input = fuzz::span_of(data, size);
  fuzz::check_one_of<peer::Hello, peer::Challenge, peer::Prove, Welcome, peer::Refused, Done, Publish,
                     Published, Open, Opened, Poll, Reserve, Unreserve, Restore, List, Listing, Rollback,
                     Remove, WaitForChange, Describe, Stop, Files, Replace, Handover, Moved, Ready, Join,
                     Conclude, OpenDraft, AskLimits, KeptLimits>(input);
  fuzz::check_record(input);
  fuzz::check_table(input);
  return 0;
}
