// SPDX-License-Identifier: Apache-2.0
// What publishers and hosts of a group decide, under lost answers, ended leases and lost memory: the invariants of tests/model/hosts.pml.
#include "store/group/rules.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <set>

#include <fmt/format.h>

#include "onecopy/core/error.h"
#include "store/group/waiting.h"
#include "support/refusal.h"
#include "support/rounds.h"
#include "unit/store/group/fake_directory.h"

namespace onecopy::store::group {
namespace {

using onecopy::testing::expect_refusal;
using Outcome = Attempt::Outcome;
using namespace std::chrono_literals;

Bytes key_of_tests() { return Bytes(32, std::byte{7}); }

Token token_of_number(std::uint32_t number) {
  Token token{};
  std::memcpy(token.data(), &number, sizeof number);
  return token;
}

class GroupRules : public ::testing::Test {
 protected:
  void SetUp() override { directory_.put(records_.group(), Records::text_of_group("a group")); }

  Records::View view() { return records_.view(directory_); }
  void say_whole(const std::string& host, const Token& token) {
    directory_.put(records_.whole("llama", host), Records::text_of(Report{token, 0, 0, 1, 8, {}, 0}));
  }
  Current current() { return view().current["llama"].value; }
  std::unique_ptr<Publication> begun(std::uint32_t token) {
    auto publication = std::make_unique<Publication>(directory_, records_, "llama",
                                                     Stage{0, 0, token_of_number(token), "h0", "h0:1", 0});
    EXPECT_TRUE(publication->try_begin(view()));
    return publication;
  }
  void publish(std::uint32_t token) {
    const auto publication = begun(token);
    say_whole("h1", token_of_number(token));
    EXPECT_EQ(publication->try_commit(publication->progress().whole, kNow), Outcome::committed);
  }

  FakeDirectory directory_;
  const Records records_{"prod", {key_of_tests()}};
};

TEST_F(GroupRules, AVersionIsCurrentOnceItsHostsHaveItWhole) {
  publish(1);
  EXPECT_EQ(current(), (Current{1, 1, 1, token_of_number(1)}));
  EXPECT_TRUE(view().stages.empty());
}

TEST_F(GroupRules, NumbersGoOnAfterARollback) {
  publish(1);
  publish(2);
  EXPECT_EQ(
      rollback_of(records_, view(), "llama", 1, token_of_number(1)).carry_out(directory_, records_, kNow),
      Outcome::committed);
  publish(3);
  EXPECT_EQ(current(), (Current{3, 3, 4, token_of_number(3)}));
}

TEST_F(GroupRules, OnePublisherAtATime) {
  const auto first = begun(1);
  Publication second(directory_, records_, "llama", {0, 0, token_of_number(2), "h1", "h1:1", 0});
  EXPECT_FALSE(second.try_begin(view()));
  EXPECT_EQ(view().stages["llama"].value.host, "h0");
}

TEST_F(GroupRules, RollbackBetweenStageAndCommitSupersedesThePublisher) {
  publish(1);
  publish(2);
  const auto publication = begun(3);
  say_whole("h1", token_of_number(3));
  rollback_of(records_, view(), "llama", 1, token_of_number(1)).carry_out(directory_, records_, kNow);
  expect_refusal(ErrorCode::superseded, {"is not current"},
                 [&] { publication->try_commit(publication->progress().whole, kNow); });
  EXPECT_EQ(current().number, 1U);
}

TEST_F(GroupRules, APublisherThatWaitsForHostsIsToldOfARollback) {
  publish(1);
  publish(2);
  const auto publication = begun(3);
  Waiting waiting(*publication, 0, {{"h1", "an id"}}, Deadline::after(1min));
  rollback_of(records_, view(), "llama", 1, token_of_number(1)).carry_out(directory_, records_, kNow);
  expect_refusal(ErrorCode::superseded, {"is not current", "generation 2"}, [&] { waiting.run(); });
  EXPECT_FALSE(waiting.may_be_committed());
}

TEST_F(GroupRules, APublisherThatWaitsReadsTheDirectoryOnceEachTime) {
  const auto publication = begun(1);
  Waiting waiting(*publication, 0, {{"h1", "an id"}, {"h2", "an id"}}, kNow);
  directory_.put(records_.host("h1"), Records::text_of(Present{"an id", "h1:1"}));
  say_whole("h2", token_of_number(1));
  directory_.reads = 0;
  expect_refusal(ErrorCode::timeout, {"h1 has not got all of it yet"}, [&] { waiting.run(); });
  EXPECT_EQ(directory_.reads, 1);
}

TEST_F(GroupRules, AStageEndsWithItsLease) {
  const auto publication = begun(1);
  say_whole("h1", token_of_number(1));
  directory_.end_lease_of(records_.stage("llama"));
  expect_refusal(ErrorCode::superseded, {"is not current"},
                 [&] { publication->try_commit(publication->progress().whole, kNow); });
  publish(2);
}

TEST_F(GroupRules, AHostThatSaidThatItHasTheVersionAndLostItIsNotCounted) {
  const auto publication = begun(1);
  say_whole("h1", token_of_number(1));
  const auto progress = publication->progress();
  say_whole("h1", token_of_number(1));  // by another keeper of that host
  EXPECT_EQ(publication->try_commit(progress.whole, kNow), Outcome::refused);
  EXPECT_EQ(publication->try_commit(publication->progress().whole, kNow), Outcome::committed);
}

TEST_F(GroupRules, AHostThatHasTheNextVersionAlreadyShowsThisOne) {
  const auto publication = begun(1);
  say_whole("h1", token_of_number(1));
  const auto whole = publication->progress().whole;
  EXPECT_EQ(publication->try_commit(whole, kNow), Outcome::committed);
  EXPECT_FALSE(publication->is_shown(whole));
  directory_.put(records_.whole("llama", "h1"),
                 Records::text_of(Report{token_of_number(2), 0, 1, 2, 8, {}, 0}));
  EXPECT_TRUE(publication->is_shown(whole));
}

TEST_F(GroupRules, ACommitWithoutAnswerIsNeitherCommittedNorRefused) {
  const auto publication = begun(1);
  say_whole("h1", token_of_number(1));
  const auto whole = publication->progress().whole;
  directory_.fate = [] { return FakeDirectory::Fate::late; };
  EXPECT_EQ(publication->try_commit(whole, kNow), Outcome::unknown);
  EXPECT_EQ(current().number, 0U);
  EXPECT_TRUE(directory_.carry_out_late());
  EXPECT_EQ(current().number, 1U);
}

TEST_F(GroupRules, ACommitWhoseAnswerWasLostIsReadBack) {
  const auto publication = begun(1);
  say_whole("h1", token_of_number(1));
  const auto whole = publication->progress().whole;
  directory_.fate = [] { return FakeDirectory::Fate::lost_after; };
  EXPECT_EQ(publication->try_commit(whole, Deadline::after(std::chrono::seconds(60))), Outcome::committed);
}

TEST_F(GroupRules, ACommitThatMeetsAnElectionIsMadeOnce) {
  for (const auto fate : {FakeDirectory::Fate::lost_before, FakeDirectory::Fate::lost_after}) {
    const std::uint64_t before = current().generation;
    const auto publication = begun(1);
    say_whole("h1", token_of_number(1));
    const auto whole = publication->progress().whole;
    int asked = 0;
    directory_.fate = [&] { return asked++ < 2 ? fate : FakeDirectory::Fate::answered; };
    EXPECT_EQ(publication->try_commit(whole, Deadline::after(std::chrono::seconds(60))),
              Outcome::committed);
    directory_.fate = [] { return FakeDirectory::Fate::answered; };
    EXPECT_EQ(asked, fate == FakeDirectory::Fate::lost_before ? 3 : 1);
    EXPECT_EQ(current().generation, before + 1);
  }
}

TEST_F(GroupRules, ACommitWithoutAnswerThatAnotherChangeForestalledIsSuperseded) {
  const auto publication = begun(1);
  say_whole("h1", token_of_number(1));
  const auto whole = publication->progress().whole;
  int asked = 0;
  directory_.fate = [&] {
    if (asked++ > 0) return FakeDirectory::Fate::answered;
    directory_.put(records_.current("llama"),
                   records_.text_of("a group", "llama", {7, 7, 1, token_of_number(7)}));
    return FakeDirectory::Fate::lost_before;
  };
  expect_refusal(ErrorCode::superseded, {"is not current"},
                 [&] { publication->try_commit(whole, Deadline::after(std::chrono::seconds(60))); });
}

TEST_F(GroupRules, KeysThatWereWrittenWithoutTheKeyOfTheGroupAreIgnoredAndNamed) {
  publish(1);
  const Records stranger("prod", {Bytes(32, std::byte{8})});
  directory_.put(records_.current("llama"),
                 stranger.text_of("a group", "llama", {9, 9, 9, token_of_number(9)}));
  EXPECT_FALSE(view().current.contains("llama"));
  EXPECT_EQ(view().problems,
            std::vector<std::string>{"/onecopy/prod/current/llama was not written with this group's key"});
  directory_.put(records_.current("other"),
                 records_.text_of("a group", "llama", {9, 9, 9, token_of_number(9)}));
  EXPECT_FALSE(view().current.contains("other"));
}

TEST_F(GroupRules, WhileTheKeyIsChangedBothKeysAreAccepted) {
  publish(1);
  const Bytes fresh(32, std::byte{8});
  const Records changing("prod", {fresh, key_of_tests()}), changed("prod", {fresh});
  const Records::View seen = changing.view(directory_);
  EXPECT_EQ(seen.current.at("llama").value, current());
  EXPECT_EQ(seen.outdated, std::vector<std::string>{"llama"});
  EXPECT_TRUE(changed.view(directory_).current.empty());
  directory_.put(records_.current("llama"), changing.text_of("a group", "llama", current()));
  EXPECT_EQ(changed.view(directory_).current.size(), 1U);
  EXPECT_TRUE(changing.view(directory_).outdated.empty());
}

TEST(GroupProtocols, APublishUsesTheHighestThatAllHostsSpeak) {
  std::map<std::string, Keyed<Present>> hosts;
  hosts["a"].value = {"", "", "", 1, 2};
  hosts["b"].value = {"", "", "", 2, 3};
  EXPECT_EQ(protocol_of(hosts), 2U);
  hosts["c"].value = {"", "", "", 3, 4};
  expect_refusal(ErrorCode::version_mismatch, {"host a speaks protocol 2", "c speaks 3"},
                 [&] { protocol_of(hosts); });
}

TEST(GroupSteps, AHostShowsTheNewestChangeThatItHasAndNeverAnOlderOne) {
  const Current first{1, 1, 1, token_of_number(1)}, second{2, 2, 2, token_of_number(2)},
      deleted{0, 2, 3, {}};
  EXPECT_EQ(step_for(second, {first, false, true}), Step::show);
  EXPECT_EQ(step_for(second, {first, false, false}), Step::fetch);
  EXPECT_EQ(step_for(second, {second, true, false}), Step::none);
  EXPECT_EQ(step_for(second, {second, false, false}), Step::fetch);  // the machine was restarted
  EXPECT_EQ(step_for(first, {second, false, true}), Step::stop);
  EXPECT_EQ(step_for({1, 2, 2, token_of_number(1)}, {second, true, true}), Step::stop);
  EXPECT_EQ(step_for(deleted, {second, false, false}), Step::remove);
  EXPECT_EQ(step_for(deleted, {deleted, true, false}), Step::none);
}

TEST_F(GroupRules, ADirectoryThatHasLostChangesIsNoticed) {
  publish(1);
  const std::map<std::string, Current> noted{{"llama", {2, 2, 2, token_of_number(2)}}};
  EXPECT_EQ(what_is_lost(view(), "a group", {}), "");
  EXPECT_NE(what_is_lost(view(), "a group", noted).find("has lost changes"), std::string::npos);
  EXPECT_NE(what_is_lost(view(), "another", {}).find("another group"), std::string::npos);
  EXPECT_NE(what_is_lost({}, "a group", {}).find("has lost its data"), std::string::npos);
}

TEST(GroupSources, HostsFormAChainThatBeginsAtThePublisher) {
  std::map<std::string, Keyed<Present>> hosts;
  for (const char* const name : {"a", "b", "c", "d"}) hosts[name];
  using Names = std::vector<std::string>;
  EXPECT_EQ(sources_of(hosts, "c", "d"), (Names{"c", "a", "b"}));
  EXPECT_EQ(sources_of(hosts, "c", "a"), (Names{"d", "c", "b"}));
  EXPECT_EQ(sources_of(hosts, "c", "b"), (Names{"a", "d", "c"}));
  EXPECT_EQ(sources_of(hosts, "x", "a"), (Names{"b", "c", "d"}));
}

TEST(GroupSources, TheChainGoesFromRackToRack) {
  std::map<std::string, Keyed<Present>> hosts;
  for (const char* const name : {"a", "c"}) hosts[name].value.rack = "west";
  for (const char* const name : {"b", "d"}) hosts[name].value.rack = "east";
  using Names = std::vector<std::string>;  // b and d, then a and c
  EXPECT_EQ(sources_of(hosts, "d", "c"), (Names{"a", "d", "b"}));
  EXPECT_EQ(sources_of(hosts, "d", "b"), (Names{"c", "a", "d"}));
}

/// Publishers, hosts and a directory whose answers are lost, with random steps.
class RandomGroup {
 public:
  explicit RandomGroup(unsigned seed) : random_(seed) {
    directory_.put(records_.group(), Records::text_of_group("g"));
    directory_.changed = [this] { note_current(); };
    directory_.fate = [this] {
      const int one = below(12);
      return one < 9 ? FakeDirectory::Fate::answered : static_cast<FakeDirectory::Fate>(one - 8);
    };
  }

  void run(int steps) {
    for (int step = 0; step < steps; ++step) {
      switch (below(9)) {
        case 0:
        case 1:
        case 2: publisher(publishers_[below(2)]); break;
        case 3:
        case 4:
        case 5: host(hosts_[below(3)]); break;
        case 6: rollback(); break;
        case 7: directory_.carry_out_late(); break;
        default: fault(); break;
      }
    }
    while (directory_.has_late()) directory_.carry_out_late();
    for (const auto& [token, was_told] : told_)
      EXPECT_EQ(was_told, was_current_.contains(token)) << "token " << token;
    EXPECT_GT(committed_, 0);
  }

 private:
  struct Host {
    std::string name;
    Current noted;              // on the disk
    std::set<Token> whole;      // in memory
    Token shown{};              // in memory
    std::uint64_t highest = 0;  // the generation that readers have seen
  };
  struct Publisher {
    std::unique_ptr<Publication> publication;
    std::uint32_t token = 0;
    bool has_begun = false;
  };

  int below(int bound) { return std::uniform_int_distribution<int>(0, bound - 1)(random_); }

  void note_current() {
    const Records::View view = records_.view(directory_);
    const auto at = view.current.find("llama");
    if (at == view.current.end() || at->second.value == last_) return;
    const Current now = at->second.value;
    EXPECT_EQ(now.generation, last_.generation + 1);
    last_ = now;
    const auto [number, is_new] = numbers_.try_emplace(now.number, now.token);
    EXPECT_EQ(number->second, now.token) << "two versions have the number " << now.number;
    if (is_new) {
      EXPECT_EQ(now.number, numbers_.rbegin()->first);
    }
    std::uint32_t token = 0;
    std::memcpy(&token, now.token.data(), sizeof token);
    was_current_.insert(token);
  }

  void publisher(Publisher& one) {
    try {
      step(one);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::superseded || error.code() == ErrorCode::system) end(one, false);
    }
  }
  void end(Publisher& one, std::optional<bool> outcome) {
    if (outcome) told_[one.token] = *outcome;
    one = {};
  }
  void step(Publisher& one) {
    if (!one.publication) {
      one.token = ++tokens_;
      one.publication = std::make_unique<Publication>(
          directory_, records_, "llama", Stage{0, 0, token_of_number(one.token), "h0", "h0:1", 0});
    }
    if (!one.has_begun) {
      one.has_begun = one.publication->try_begin(records_.view(directory_));
      return;
    }
    const auto progress = one.publication->progress();
    if (progress.whole.size() < hosts_.size()) {
      if (below(20) == 0) end(one, false);  // its deadline
      return;
    }
    const Outcome outcome = one.publication->try_commit(progress.whole, kNow);
    committed_ += outcome == Outcome::committed ? 1 : 0;
    if (outcome != Outcome::refused)
      end(one, outcome == Outcome::committed ? std::optional(true) : std::nullopt);
  }

  void host(Host& host) {
    const Records::View view = records_.view(directory_);
    if (const auto stage = view.stages.find("llama"); stage != view.stages.end()) {
      host.whole.insert(stage->second.value.token);
      directory_.put(records_.whole("llama", host.name),
                     Records::text_of(Report{stage->second.value.token, 0, 0, 1, 8, {}, 0}));
    }
    const auto at = view.current.find("llama");
    if (at == view.current.end()) return;
    const Current current = below(4) == 0 && !old_.empty()
                                ? old_[static_cast<std::size_t>(below(int(old_.size())))]
                                : at->second.value;
    old_.push_back(at->second.value);
    const Step step =
        step_for(current, {host.noted, host.shown == current.token, host.whole.contains(current.token)});
    if (step == Step::fetch) host.whole.insert(current.token);
    if (step != Step::show) return;
    host.noted = current;
    if (below(10) == 0) return lose(host);  // killed before it shows
    host.shown = current.token;
    EXPECT_GE(current.generation, host.highest) << host.name << " went back";
    host.highest = current.generation;
  }
  static void lose(Host& host) {
    host.whole.clear();
    host.shown = {};
  }

  void rollback() {
    const Records::View view = records_.view(directory_);
    if (numbers_.size() < 2 || !view.current.contains("llama")) return;
    const auto [number, token] = *std::next(numbers_.begin(), below(int(numbers_.size())));
    try {
      rollback_of(records_, view, "llama", number, token).carry_out(directory_, records_, kNow);
    } catch (const Error&) {
    }
  }

  void fault() {
    switch (below(3)) {
      case 0: directory_.end_lease_of(records_.stage("llama")); break;
      case 1: lose(hosts_[static_cast<std::size_t>(below(3))]); break;
      default: {
        Publisher& killed = publishers_[static_cast<std::size_t>(below(2))];
        killed = {};  // and its user is told nothing
      }
    }
  }

  std::mt19937 random_;
  const Records records_{"prod", {key_of_tests()}};
  FakeDirectory directory_;
  std::array<Publisher, 2> publishers_;
  std::array<Host, 3> hosts_{Host{"h0", {}, {}, {}, 0}, Host{"h1", {}, {}, {}, 0},
                             Host{"h2", {}, {}, {}, 0}};
  std::vector<Current> old_;
  std::uint32_t tokens_ = 0;
  int committed_ = 0;
  Current last_;
  std::map<std::uint64_t, Token> numbers_;
  std::set<std::uint32_t> was_current_;
  std::map<std::uint32_t, bool> told_;
};

TEST(RandomGroupTest, KeepsItsPromisesUnderLostAnswersLeasesAndMemory) {
  for (unsigned seed = 0; seed < onecopy::testing::rounds(60); ++seed) {
    SCOPED_TRACE(seed);
    RandomGroup(seed).run(1500);
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace onecopy::store::group
