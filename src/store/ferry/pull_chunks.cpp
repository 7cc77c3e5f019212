// SPDX-License-Identifier: Apache-2.0
// How the chunks of a version are taken, from one source after another.
#include <fmt/format.h>

#include <algorithm>
#include <deque>

#include "onecopy/core/error.h"
#include "os/log.h"
#include "store/ferry/pull.h"

namespace onecopy::store::ferry {
namespace {

/// The time in which a host must send something if another host may be asked.
constexpr std::chrono::milliseconds kSwitch{1'000};
constexpr std::size_t kUnderWay = 4;  ///< chunks that are asked for before the first one has come

}  // namespace

/// Takes the chunks that are missing, from the source and then from others that have the version. Once all were slow, from the
/// fastest one.
void Pull::take_all(Source& source, const Told& told, Arrival& arrival) {
  std::exception_ptr last;
  const auto take_from = [&](Source& from) {
    try {
      if ((&from != &source || !from.stream) && !offers(from, told)) {
        from.rate = 0;
        return false;
      }
      take_chunks(from, arrival);
      return true;
    } catch (const Error& error) {
      log_warning(fmt::format("{} gives no more of version {} of \"{}\": {}", from.at.str(), told.number,
                              options_.name, error.what()));
      last = std::current_exception();
      if (!from.rate) from.rate = 0;
      leave(from);
      return false;
    }
  };
  if (take_from(source)) return;
  for (Source& other : sources_)
    if (&other != &source && take_from(other)) return;
  if (*fastest().rate > 0 && take_from(fastest())) return;
  std::rethrow_exception(last);
}

Pull::Source& Pull::fastest() { return *std::ranges::max_element(sources_, {}, &Source::rate); }

/// Throws timeout if another source may be twice as fast.
void Pull::check_rate(Source& source, std::uint64_t bytes, TimePoint since) const {
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - since;
  if (elapsed < kSwitch) return;
  source.rate = static_cast<double>(bytes) / elapsed.count();
  const bool is_slow = std::ranges::any_of(sources_, [&](const Source& other) {
    return &other != &source && (!other.rate || *other.rate > 2 * *source.rate);
  });
  if (is_slow) throw Error(ErrorCode::timeout, fmt::format("it sends {:.1f} MB/s", *source.rate / 1e6));
}

bool Pull::offers(Source& source, const Told& wanted) {
  if (poll(source, 0, {}, {}).version == wanted.version) return true;
  return poll(source, wanted.number, {}, {}).version == wanted.version;
}

void Pull::take_chunks(Source& source, Arrival& arrival) {
  const std::chrono::milliseconds patience = sources_.size() > 1 ? kSwitch : options_.patience;
  std::deque<std::uint64_t> missing, asked;
  for (std::uint64_t chunk = 0; chunk < arrival.chunks(); ++chunk)
    if (!arrival.has(chunk)) missing.push_back(chunk);
  Deadline progress = Deadline::after(patience);
  std::size_t wrong = 0;
  while (!missing.empty() || !asked.empty()) {
    options_.between_chunks();
    while (!missing.empty() && asked.size() < kUnderWay) {
      source.stream->send_message(Take{kProtocol, Question::take, missing.front()}, patience);
      asked.push_back(missing.front());
      missing.pop_front();
    }
    const auto told = source.stream->receive_message<Chunk>(patience);
    const std::uint64_t chunk = asked.front();
    asked.pop_front();
    if (told.chunk != chunk || (told.bytes != 0 && told.bytes != arrival.room(chunk).size()))
      throw Error(ErrorCode::protocol, "it sent another chunk than it was asked for");
    const std::uint64_t taken = take_chunk(source, arrival, told, patience);
    taken_ += taken;
    if (taken != 0) progress = Deadline::after(patience);
    else missing.push_front(chunk);
    if (taken == 0 && told.bytes != 0 && ++wrong > 1)
      throw Error(ErrorCode::bad_file,
                  fmt::format("{} has sent two chunks with a wrong checksum", source.at.str()));
    if (progress.has_passed())
      throw Error(ErrorCode::timeout, fmt::format("no chunk has come for {} ms", patience.count()));
  }
}

/// Fills the memory of a chunk, and returns its CRC-32C.
std::uint32_t Pull::receive(Source& source, std::span<std::byte> room,
                            std::chrono::milliseconds patience) const {
  constexpr std::size_t kPiece = std::size_t{1} << 20;
  const TimePoint begin = std::chrono::steady_clock::now();
  const auto filled = [&](std::size_t bytes) { check_rate(source, bytes, begin); };
  if (source.pipe) return source.pipe->receive(room, patience, filled);
  std::uint32_t crc = 0;
  for (std::size_t at = 0; at < room.size(); filled(at)) {
    const auto piece = room.subspan(at, std::min(room.size() - at, kPiece));
    crc = source.stream->receive(piece, patience, crc);
    at += piece.size();
  }
  return crc;
}

/// Returns the bytes of the chunk; 0 if the host has not got the chunk, or the checksum is wrong.
std::uint64_t Pull::take_chunk(Source& source, Arrival& arrival, const Chunk& told,
                               std::chrono::milliseconds patience) {
  if (told.bytes == 0) return 0;
  const std::uint32_t crc = receive(source, arrival.room(told.chunk), patience);
  if (source.stream->receive_message<Checksum>(patience).crc == crc) {
    arrival.take(told.chunk);
    return told.bytes;
  }
  log_warning(fmt::format("chunk {} of \"{}\" came from {} with a wrong checksum, and is asked for again",
                          told.chunk, options_.name, source.at.str()));
  return 0;
}

}  // namespace onecopy::store::ferry
