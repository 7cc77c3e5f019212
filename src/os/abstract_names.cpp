// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdlib>
#include <sstream>

#include "os/file.h"
#include "os/unix_socket.h"

namespace onecopy {
namespace {

constexpr unsigned long kAcceptsConnections = 0x00010000;  // __SO_ACCEPTCON
constexpr unsigned long kSeqPacket = 5;

/// Returns the abstract name in a line of /proc/net/unix if a SEQPACKET socket listens there, else "". The columns are
/// address, references, protocol, flags, type, state, inode, name.
std::string listening_name(const std::string& line) {
  std::istringstream columns(line);
  std::string address, references, protocol, flags, type, state, inode;
  columns >> address >> references >> protocol >> flags >> type >> state >> inode;
  if (!columns || columns.get() != ' ' || columns.get() != '@') return {};
  if (!(std::strtoul(flags.c_str(), nullptr, 16) & kAcceptsConnections)) return {};
  if (std::strtoul(type.c_str(), nullptr, 16) != kSeqPacket) return {};
  std::string name;
  std::getline(columns, name);
  return name;
}

}  // namespace

std::vector<std::string> list_abstract_names(const std::string& prefix) {
  std::vector<std::string> names;
  std::istringstream lines(try_read_text("/proc/net/unix").value_or(""));
  for (std::string line; std::getline(lines, line);) {
    std::string name = listening_name(line);
    if (!name.empty() && name.starts_with(prefix)) names.push_back(std::move(name));
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

}  // namespace onecopy
