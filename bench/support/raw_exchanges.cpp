// SPDX-License-Identifier: Apache-2.0
// Measures the system itself, without a library.
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "onecopy/core/error.h"
#include "os/futex.h"
#include "os/memfd.h"
#include "support/arena.h"
#include "support/cpu.h"
#include "support/exchange.h"

namespace onecopy::bench {
namespace {

/// An exchange over two words with both sides spinning, the fastest way in which two processes can communicate.
class Spin final : public Exchange {
 public:
  explicit Spin(Arena& arena) : arena_(arena) {}
  void lead(int count) override {
    for (int i = 0; i < count; ++i) {
      arena_.there.store(++number_, std::memory_order_release);
      spin_until([&] { return arena_.back.load(std::memory_order_acquire) == number_; });
    }
  }
  void follow(int count) override {
    for (int i = 0; i < count; ++i) {
      ++number_;
      spin_until([&] { return arena_.there.load(std::memory_order_acquire) == number_; });
      arena_.back.store(number_, std::memory_order_release);
    }
  }

 private:
  Arena& arena_;
  std::uint32_t number_ = 0;
};

/// The exchange with both sides sleeping.
class Sleep final : public Exchange {
 public:
  explicit Sleep(Arena& arena) : arena_(arena) {}
  void lead(int count) override {
    for (int i = 0; i < count; ++i) {
      wake(arena_.sleep_there, ++number_);
      wait(arena_.sleep_back, number_);
    }
  }
  void follow(int count) override {
    for (int i = 0; i < count; ++i) {
      wait(arena_.sleep_there, ++number_);
      wake(arena_.sleep_back, number_);
    }
  }

 private:
  static void wake(std::atomic<std::uint32_t>& word, std::uint32_t number) {
    word.store(number);
    futex_wake(word, 1);
  }
  static void wait(std::atomic<std::uint32_t>& word, std::uint32_t number) {
    while (word.load() != number) futex_wait(word, number - 1, std::chrono::seconds(1));
  }

  Arena& arena_;
  std::uint32_t number_ = 0;
};

void write_all(const Fd& fd, const char* bytes, std::size_t size) {
  if (::write(fd.get(), bytes, size) != static_cast<ssize_t>(size)) throw_errno("write to a pipe", errno);
}

void read_all(const Fd& fd, char* bytes, std::size_t size) {
  for (std::size_t done = 0; done < size;) {
    const ssize_t got = ::read(fd.get(), bytes + done, size - done);
    if (got <= 0) throw_errno("read from a pipe", errno);
    done += static_cast<std::size_t>(got);
  }
}

class Pipe final : public Exchange {
 public:
  explicit Pipe(const RawLink& link) : link_(link) {}
  void lead(int count) override {
    for (int i = 0; i < count; ++i) {
      write_all(link_.to, &byte_, 1);
      read_all(link_.from, &byte_, 1);
    }
  }
  void follow(int count) override {
    for (int i = 0; i < count; ++i) {
      read_all(link_.from, &byte_, 1);
      write_all(link_.to, &byte_, 1);
    }
  }

 private:
  const RawLink& link_;
  char byte_ = 1;
};

constexpr std::size_t kMessageBytes = 4096;

/// An exchange of one descriptor per tensor, as in torch.multiprocessing: the receiver maps and unmaps each.
class Descriptors {
 public:
  Descriptors(const RawLink& link, bool spin)
      : socket_(link.socket),
        flags_(spin ? MSG_DONTWAIT : 0),
        tensor_(create_memfd("bench-tensor", kMessageBytes)) {}

  void send() { send(tensor_.get()); }
  void send(int fd) {
    std::array<char, CMSG_SPACE(sizeof(int))> control{};
    msghdr message = prepare(control);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
    while (::sendmsg(socket_.get(), &message, MSG_NOSIGNAL) < 0)
      if (errno != EAGAIN && errno != ETOOMANYREFS) throw_errno("sendmsg", errno);
  }
  Fd receive() {
    std::array<char, CMSG_SPACE(sizeof(int))> control{};
    for (;;) {
      msghdr message = prepare(control);
      const ssize_t got = ::recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC | flags_);
      if (got < 0 && errno == EAGAIN) continue;
      if (got <= 0) throw_errno("recvmsg", errno);
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
      return Fd(fd);
    }
  }
  /// Receives, maps, reads and unmaps a tensor.
  Fd take() {
    Fd fd = receive();
    void* memory = ::mmap(nullptr, kMessageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
    if (memory == MAP_FAILED) throw_errno("mmap", errno);
    seen_ += *static_cast<volatile unsigned char*>(memory);
    ::munmap(memory, kMessageBytes);
    return fd;
  }

 private:
  msghdr prepare(std::array<char, CMSG_SPACE(sizeof(int))>& control) {
    msghdr message{};
    message.msg_iov = &vector_;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    return message;
  }

  const Fd& socket_;
  int flags_;
  Fd tensor_;
  std::array<char, 128> handle_{};  // the name of the tensor
  iovec vector_{handle_.data(), handle_.size()};
  unsigned seen_ = 0;
};

class DescriptorAndBack final : public Exchange {
 public:
  DescriptorAndBack(const RawLink& link, bool spin) : descriptors_(link, spin) {}
  void lead(int count) override {
    for (int i = 0; i < count; ++i) {
      descriptors_.send();
      descriptors_.take();
    }
  }
  void follow(int count) override {
    for (int i = 0; i < count; ++i) descriptors_.send(descriptors_.take().get());
  }

 private:
  Descriptors descriptors_;
};

class DescriptorOneWay final : public Exchange {
 public:
  explicit DescriptorOneWay(const RawLink& link) : descriptors_(link, false) {}
  void lead(int count) override {
    for (int i = 0; i < count; ++i) descriptors_.send();
  }
  void follow(int count) override {
    for (int i = 0; i < count; ++i) descriptors_.take();
  }

 private:
  Descriptors descriptors_;
};

/// A ring with one producer, one consumer and eight bytes per item: the limit of any queue.
class RingOneWay final : public Exchange {
 public:
  explicit RingOneWay(Arena& arena) : arena_(arena) {}
  void lead(int count) override {
    for (int i = 0; i < count; ++i) {
      const std::uint64_t tail = arena_.tail.load(std::memory_order_relaxed);
      if (tail - head_seen_ >= Arena::kRing)
        spin_until([&] {
          return tail - (head_seen_ = arena_.head.load(std::memory_order_acquire)) < Arena::kRing;
        });
      arena_.ring[tail % Arena::kRing] = tail;
      arena_.tail.store(tail + 1, std::memory_order_release);
    }
  }
  void follow(int count) override {
    for (int i = 0; i < count; ++i) {
      const std::uint64_t head = arena_.head.load(std::memory_order_relaxed);
      if (head == tail_seen_)
        spin_until([&] { return (tail_seen_ = arena_.tail.load(std::memory_order_acquire)) != head; });
      sum_ += arena_.ring[head % Arena::kRing];
      arena_.head.store(head + 1, std::memory_order_release);
    }
  }

 private:
  Arena& arena_;
  std::uint64_t head_seen_ = 0;
  std::uint64_t tail_seen_ = 0;
  std::uint64_t sum_ = 0;
};

/// Sends as many bytes as a handle has through a pipe, in one direction.
class PipeOneWay final : public Exchange {
 public:
  explicit PipeOneWay(const RawLink& link) : link_(link) {}
  void lead(int count) override {
    for (int i = 0; i < count; ++i) write_all(link_.to, bytes_.data(), bytes_.size());
  }
  void follow(int count) override {
    for (int i = 0; i < count; ++i) read_all(link_.from, bytes_.data(), bytes_.size());
  }

 private:
  const RawLink& link_;
  std::array<char, 128> bytes_{};
};

}  // namespace

Exchanges raw_exchanges(const RawLink& link) {
  Arena& arena = Arena::in(link);
  Exchanges all;
  all["spin"] = std::make_unique<Spin>(arena);
  all["futex"] = std::make_unique<Sleep>(arena);
  all["pipe"] = std::make_unique<Pipe>(link);
  all["unix"] = std::make_unique<DescriptorAndBack>(link, false);
  all["unix spin"] = std::make_unique<DescriptorAndBack>(link, true);
  all["ring to"] = std::make_unique<RingOneWay>(arena);
  all["pipe to"] = std::make_unique<PipeOneWay>(link);
  all["unix to"] = std::make_unique<DescriptorOneWay>(link);
  return all;
}

}  // namespace onecopy::bench
