// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>

#include "store/group/records.h"

namespace onecopy::store::group {

/// Remembers for a host, also after a restart of the machine: the id of its group, and the last change of each
/// object that was shown here. A file, which is replaced as a whole, and is on the disk before the change is shown.
///
/// Thread safety: none.
class Remembered {
 public:
  /// Reads the file, or begins anew if there is none. Throws bad_file, so that a host with a damaged file shows nothing older by mistake.
  explicit Remembered(std::string path);

  const std::string& host_id() const noexcept { return host_id_; }
  const std::string& group_id() const noexcept { return group_id_; }
  /// Returns the last change that was shown here; generation 0 if there is none.
  Current of(const std::string& name) const;
  const std::map<std::string, Current>& all() const noexcept { return all_; }
  void join(const std::string& group_id);
  /// Throws out_of_memory and system if the file cannot be written; then nothing has changed.
  void note(const std::string& name, const Current& current);
  std::string text() const;
  /// Reads what text() returns. Throws bad_file.
  static Remembered from_text(const std::string& text);

 private:
  Remembered() = default;
  void read(const std::string& text);
  void write() const;

  std::string path_, host_id_, group_id_;
  std::map<std::string, Current> all_;
};

/// Returns a random text of 32 digits.
std::string random_id();

}  // namespace onecopy::store::group
