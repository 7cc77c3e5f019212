// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "onecopy/core/bytes.h"
#include "store/format/record.h"
#include "store/group/directory.h"

/// The keys of a group in its directory, described in docs/design/formats/store-group-v1.md.
namespace onecopy::store::group {

inline constexpr unsigned kLowestGroupProtocol = 1, kGroupProtocol = 1;

/// The version of an object that the group shows.
struct Current {
  std::uint64_t number = 0;      ///< 0: the object is deleted
  std::uint64_t newest = 0;      ///< the largest number that a version of the object has had
  std::uint64_t generation = 0;  ///< the number of changes of what is current
  Token token{};                 ///< names the version on all hosts

  bool operator==(const Current&) const = default;
};

/// A version that is about to become current: the right to publish the object.
struct Stage {
  std::uint64_t number = 0;
  std::uint64_t generation = 0;  ///< of what was current when the stage began
  Token token{};
  std::string host, address;  ///< where the version is
  unsigned protocol = 0;      ///< by which the hosts agree on the version
};

/// The report of a host about an object.
struct Report {
  Token token{};                 ///< of the version that is whole there
  std::uint64_t generation = 0;  ///< 0: the version is not current there
  std::uint64_t shown = 0;       ///< the generation that is shown there
  std::uint64_t number = 0, bytes = 0;
  std::string problem;    ///< why the host cannot have the version of that token; empty if it has
  std::uint8_t code = 0;  ///< the ErrorCode of the problem
};

/// A host whose lease has not ended.
struct Present {
  std::string id;  ///< of the host's directory: two hosts of one name differ
  std::string address;
  std::string rack = {};  ///< hosts of one rack are neighbours in the chain
  unsigned lowest = kLowestGroupProtocol, highest = kGroupProtocol;
};

template <class T>
struct Keyed {
  T value;
  std::int64_t changed = 0;  ///< as in KeyValue
};

/// Writes and reads the keys of a group. Stages and what is current have a code that only who knows a key of the group can make.
/// The first key makes codes; codes of the other keys are accepted. Thread safety: const members may be called concurrently.
class Records {
 public:
  /// Throws invalid_argument for a name that has other characters than letters, digits and "-_.".
  Records(const std::string& group, std::vector<Bytes> keys);

  std::string group() const { return prefix_ + "group"; }
  std::string host(const std::string& host) const { return prefix_ + "hosts/" + host; }
  std::string member(const std::string& host) const { return prefix_ + "members/" + host; }
  std::string current(const std::string& name) const { return prefix_ + "current/" + name; }
  std::string stage(const std::string& name) const { return prefix_ + "stage/" + name; }
  std::string whole(const std::string& name, const std::string& host) const {
    return prefix_ + "whole/" + name + "//" + host;
  }
  /// Returns the key under which a host that has stopped says what it remembers.
  std::string told(const std::string& host) const { return prefix_ + "told/" + host; }
  const std::string& prefix() const noexcept { return prefix_; }

  /// Contains all keys at one moment. Reports are read for one object at most.
  struct View {
    std::string id;  ///< of the group; empty if there is none
    std::map<std::string, Keyed<Current>> current;
    std::map<std::string, Keyed<Stage>> stages;
    std::map<std::string, Keyed<Present>> hosts;
    std::map<std::string, std::string> members;  ///< the ids of hosts by their names
    std::vector<std::string> outdated;  ///< the names in `current` whose code is not of the first key
    std::vector<std::string> problems;  ///< keys that were written by somebody without the group's key
    std::map<std::string, Keyed<Report>> reports;  ///< by hosts
  };
  /// Reads all in one request. `object`: whose reports are wanted; empty for none.
  View view(Directory& directory, const std::string& object = {}) const;
  Keys watched() const { return {prefix_ + "current/", prefix_ + "told/"}; }
  std::map<std::string, Keyed<Report>> reports(Directory& directory, const std::string& name) const {
    return reports_in(directory.read({keys_of_reports(name)}), name);
  }

  std::string text_of(const std::string& id, const std::string& name, const Current& current) const;
  std::string text_of(const std::string& id, const std::string& name, const Stage& stage) const;
  static std::string text_of(const Report& report);
  static std::string text_of(const Present& present);
  static std::string text_of_group(const std::string& id);

 private:
  void add_to(View& view, const KeyValue& one) const;
  Keys keys_of_reports(const std::string& name) const {
    return {prefix_ + "whole/" + name + "//", prefix_ + "whole/" + name + "/0"};
  }
  std::map<std::string, Keyed<Report>> reports_in(const std::vector<KeyValue>& all,
                                                  const std::string& name) const;

  std::string prefix_;
  std::vector<Bytes> keys_;
};

/// Throws invalid_argument for a name of a group or a host that has other characters than letters, digits and "-_.".
void check_label(const std::string& label, const char* what);

}  // namespace onecopy::store::group
