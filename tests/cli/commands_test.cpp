// SPDX-License-Identifier: Apache-2.0
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "command_process.h"
#include "onecopy/core/error.h"
#include "onecopy/share/share.h"
#include "os/unix_socket.h"
#include "support/child.h"
#include "support/eventually.h"
#include "support/note.h"
#include "support/watchdog.h"

namespace onecopy::testing {
namespace {

std::string small_file() {
  return safetensors_bytes(R"({"x":{"dtype":"U8","shape":[64],"data_offsets":[0,64]}})",
                           std::string(64, 'x'));
}

nlohmann::json owner_of(const nlohmann::json& listing, int pid) {
  for (const auto& owner : listing.at("owners"))
    if (owner.at("pid") == pid) return owner;
  return nullptr;
}

TEST(Commands, EveryHelpShowsAnExample) {
  for (const char* command : {"share", "load", "open", "ls", "doctor", "gc", "key", "help", "version"}) {
    const Outcome help = run_command({command, "--help"});
    EXPECT_EQ(help.status, 0) << command;
    EXPECT_TRUE(contains(help.out, std::string("onecopy ") + command)) << command;
    EXPECT_TRUE(contains(help.out, "Example")) << command;
  }
  for (const char* word : {"serve", "status", "stop", "put", "ls", "watch", "rollback", "rm", "pull"}) {
    const Outcome help = run_command({"store", word, "--help"});
    EXPECT_TRUE(contains(help.out, std::string("\n  onecopy store ") + word)) << help.out;
    EXPECT_FALSE(contains(help.out, "onecopy open")) << word << ": the example of another command";
  }
}

// CLI11 2.1 takes any text as the name of an argument. Newer releases end every command at a name like HOST:PORT.
TEST(Commands, AnArgumentIsNamedByAPlainWord) {
  const std::vector<std::vector<std::string>> commands = {
      {"share"}, {"open"}, {"store", "put"}, {"store", "rollback"}, {"store", "pull"}};
  const std::regex argument(R"(\n  (\S+) (?:TEXT|UINT))");
  for (std::vector<std::string> command : commands) {
    command.emplace_back("--help");
    const std::string help = run_command(command).out;
    const std::string arguments = help.substr(0, help.find("Options:"));
    std::sregex_iterator at(arguments.begin(), arguments.end(), argument);
    EXPECT_NE(at, std::sregex_iterator{}) << help;
    for (; at != std::sregex_iterator{}; ++at)
      EXPECT_TRUE(std::regex_match((*at)[1].str(), std::regex("[A-Z]+"))) << help;
  }
}

TEST(Commands, JsonIsAskedForByAShortOptionToo) {
  const CommandProcess::Environment environment{{"ONECOPY_SHM_DIR", "/dev/shm"}};
  EXPECT_EQ(run_command({"gc", "--json"}, "", environment).out,
            run_command({"gc", "--format", "json"}, "", environment).out);
}

TEST(Commands, WrongUsageIsStatusTwo) {
  EXPECT_EQ(run_command({"sing"}).status, 2);
  EXPECT_EQ(run_command({"help", "sing"}).status, 2);
  EXPECT_EQ(run_command({"share"}).status, 2);
  EXPECT_EQ(run_command({"ls", "--format", "xml"}).status, 2);
}

TEST(Commands, WrongUsageOfAWordOfTheStoreLeadsToTheHelpOfThatWord) {
  EXPECT_TRUE(contains(run_command({"store", "put"}).err, "see onecopy store put --help"));
  EXPECT_TRUE(contains(run_command({"store"}).err, "see onecopy store --help"));
}

TEST(Commands, WhatIsNotExpectedIsNamed) {
  EXPECT_TRUE(contains(run_command({"sing"}).err, "no command \"sing\""));
  EXPECT_TRUE(contains(run_command({"ls", "loudly"}).err, "not expected: loudly; see onecopy ls --help"));
  EXPECT_EQ(run_command({"ls", "--log-level", "error"}).status, 0);  // a global option behind its command
}

TEST(Commands, EachMessageAboutWrongUsageSaysWhoseItIsAndWhereTheHelpIs) {
  EXPECT_EQ(run_command({"share"}).err, "onecopy: FILE is required; see onecopy share --help\n");
  EXPECT_EQ(run_command({"sing"}).err, "onecopy: no command \"sing\"; see onecopy --help\n");
  const std::string format = run_command({"ls", "--format", "xml"}).err;
  EXPECT_TRUE(format.starts_with("onecopy: --format: ")) << format;
  EXPECT_TRUE(format.ends_with("; see onecopy ls --help\n")) << format;
  EXPECT_TRUE(
      contains(run_command({"help", "sing"}).err, "onecopy: no command \"sing\"; see onecopy --help"));
}

TEST(Commands, AMistypedCommandIsAnsweredWithTheOneThatWasMeant) {
  EXPECT_EQ(run_command({"shar"}).err,
            "onecopy: no command \"shar\"; did you mean \"share\"?; see onecopy --help\n");
  EXPECT_TRUE(contains(run_command({"help", "opne"}).err, "no command \"opne\"; did you mean \"open\"?"));
}

TEST(Commands, WithoutACommandTheHelpIsPrinted) {
  const Outcome bare = run_command({});
  EXPECT_EQ(bare.status, 0);
  EXPECT_EQ(bare.err, "");
  EXPECT_EQ(bare.out, run_command({"--help"}).out);
}

TEST(Commands, HelpAndVersionAreCommandsToo) {
  EXPECT_EQ(run_command({"help"}).out, run_command({"--help"}).out);
  EXPECT_EQ(run_command({"help", "share"}).out, run_command({"share", "--help"}).out);
  const std::string version = run_command({"version"}).out;
  EXPECT_TRUE(version.starts_with(run_command({"--version"}).out)) << version;
  EXPECT_TRUE(std::regex_search(version, std::regex("\nprotocol [0-9]+, store [0-9]+: "))) << version;
}

TEST(Commands, KeyPrintsAnotherSecretOf32BytesEachTime) {
  const Outcome first = run_command({"key"}), second = run_command({"key"});
  EXPECT_EQ(first.status, 0);
  EXPECT_TRUE(std::regex_match(first.out, std::regex("[0-9a-f]{64}\n"))) << first.out;
  EXPECT_NE(first.out, second.out);
}

TEST(Commands, ALevelThatIsNoneIsSaidOnceAndNotByChildrenToo) {
  const Outcome doctor = run_command({"doctor"}, "", {{"ONECOPY_LOG", "verbose"}});
  EXPECT_EQ(doctor.status, 0) << doctor.out << doctor.err;
  EXPECT_EQ(count(doctor.err, "ONECOPY_LOG is \"verbose\""), 1u) << doctor.err;
  const Outcome told = run_command({"ls", "--log-level", "info"}, "", {{"ONECOPY_LOG", "verbose"}});
  EXPECT_EQ(count(told.err, "verbose"), 0u) << told.err;
}

TEST(Commands, ADirectoryIsNoFileOfTensors) {
  const TemporaryDirectory directory;
  EXPECT_TRUE(contains(run_command({"share", directory.path()}).err, "is a directory"));
}

TEST(Commands, APipeIsNotWaitedFor) {
  const Watchdog watchdog(std::chrono::seconds(110));
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/pipe";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_TRUE(contains(run_command({"share", path}).err, "is a pipe"));
  EXPECT_TRUE(contains(run_command({"load", path}).err, "is a pipe"));
}

/// The format of weights, by the content of the file or, if that does not tell, by its name; and the way from there.
TEST(Commands, AFileOfAnotherFormatIsNamedWithTheWayFromThere) {
  struct Case {
    const char* name;
    std::string bytes;
    const char* what;
    const char* way;
  };
  const std::string pickle(
      "\x80\x02\x8a\x0al\xfc\x9c"
      "F\xf9 j",
      12);
  const TemporaryDirectory directory;
  for (const Case& c :
       {Case{"a.npz", "PK\x03\x04 and more", "is a zip archive", "numpy.load("},
        Case{"a.pt", "PK\x03\x04 and more", "is a zip archive", "torch.load("},
        Case{"a.weights", pickle, "is a pickle", "torch.load("},
        Case{"a.gguf", std::string("GGUF\3\0\0\0\1\0\0\0", 12), "is a GGUF file", ".safetensors"},
        Case{"a.bin", std::string(64, 'b'), "not a valid safetensors file", "torch.load("}}) {
    const std::string path = directory.path() + "/" + c.name;
    write_file(path, c.bytes);
    for (const char* command : {"share", "load"}) {
      const Outcome outcome = run_command({command, path});
      EXPECT_EQ(outcome.status, 1) << path;
      EXPECT_TRUE(contains(outcome.err, c.what));
      EXPECT_TRUE(contains(outcome.err, c.way));
    }
  }
}

TEST(Commands, AFileIsNotRefusedForItsName) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/small.bin";
  write_file(path, small_file());
  EXPECT_EQ(run_command({"load", path}).status, 0);
}

TEST(Commands, TheVersionNamesTheCommit) {
  const Outcome version = run_command({"--version"});
  EXPECT_EQ(version.status, 0);
  EXPECT_TRUE(std::regex_match(
      version.out, std::regex("onecopy [0-9]+[.][0-9]+[.][0-9]+ [(](unknown|[0-9a-f]{12,40})[)]\n")))
      << version.out;
}

TEST(Commands, OutputThatCannotBeWrittenIsAFailure) {
  CommandProcess doctor({"doctor"}, "", {}, "/dev/full");
  EXPECT_EQ(doctor.wait(), 1);
  EXPECT_TRUE(contains(doctor.err(), "cannot write to stdout"));
}

TEST(Commands, AHelpThatCannotBeWrittenIsAFailure) {
  CommandProcess help({"--help"}, "", {}, "/dev/full");
  EXPECT_EQ(help.wait(), 1);
}

/// Their numbers would be given to files of the library, and a table be written into a socket.
TEST(Commands, AClosedStdoutIsNoDescriptorOfTheLibrary) {
  for (const char* command : {"doctor", "gc"}) {
    const std::string line = fmt::format("'{}' {} 2>&1 >&-", ONECOPY_COMMAND, command);
    FILE* shell = ::popen(line.c_str(), "r");
    ASSERT_NE(shell, nullptr);
    std::string said(4096, '\0');
    said.resize(std::fread(said.data(), 1, said.size(), shell));
    EXPECT_EQ(::pclose(shell), 1 << 8) << said;
    EXPECT_TRUE(contains(said, "cannot write to stdout: Bad file descriptor"));
  }
}

TEST(Commands, WithoutStderrTheExitStatusSaysIt) {
  for (const auto& [arguments, status] : {std::pair{"nosuch", 2}, std::pair{"open oc1:nothing", 1}}) {
    const int ended = std::system(fmt::format("'{}' {} 2>&-", ONECOPY_COMMAND, arguments).c_str());
    EXPECT_EQ(ended, status << 8) << arguments;
  }
}

TEST(Doctor, TriesEverythingAndSaysSoInJson) {
  const Outcome doctor = run_command({"doctor", "--format", "json"});
  const auto report = nlohmann::json::parse(doctor.out);
  EXPECT_EQ(report.at("ok").get<bool>(), doctor.status == 0);
  const std::set<std::string> verdicts{"ok", "slower", "missing"};
  std::set<std::string> names;
  for (const auto& probe : report.at("probes")) {
    names.insert(probe.at("name"));
    EXPECT_TRUE(verdicts.contains(probe.at("verdict"))) << probe;
    EXPECT_NE(probe.at("detail"), "") << probe;
    EXPECT_TRUE(probe.at("verdict") != "slower" || probe.at("advice") != "") << probe;
  }
  for (const char* name : {"memfd and seals", "huge pages", "descriptors", "mappings", "/dev/shm",
                           "memory limit", "passing descriptors", "CUDA", "Ascend", "OpenSSL"})
    EXPECT_TRUE(names.contains(name)) << name;
}

nlohmann::json ascend_probe(const CommandProcess::Environment& variables) {
  const Outcome doctor = run_command({"doctor", "--format", "json"}, "", variables);
  const auto report = nlohmann::json::parse(doctor.out);
  for (const auto& probe : report.at("probes"))
    if (probe.at("name") == "Ascend") return probe;
  ADD_FAILURE() << doctor.out;
  return {};
}

TEST(Doctor, MakesAscendMemoryOrSaysInOneLineWhyNot) {
  const auto absent = ascend_probe({{"ONECOPY_ASCEND_RUNTIME", "libnot-there.so"}});
  EXPECT_EQ(absent.at("verdict"), "missing");
  EXPECT_TRUE(contains(absent.at("detail").get<std::string>(), "no ACL runtime"));
  EXPECT_FALSE(contains(absent.at("detail").get<std::string>(), "\n"));
  const char* runtime = std::getenv("ONECOPY_ASCEND_RUNTIME");
  if (!runtime || !contains(runtime, "simulators")) GTEST_SKIP() << "the rest needs the simulated runtime";
  const auto there = ascend_probe({});
  EXPECT_EQ(there.at("verdict"), "ok") << there;
  EXPECT_TRUE(contains(there.at("detail").get<std::string>(), "2 devices"));
  const auto old = ascend_probe({{"ONECOPY_SIM_ASCEND_CANN", "8.2.RC1"}});
  EXPECT_EQ(old.at("verdict"), "missing");
  EXPECT_TRUE(contains(old.at("detail").get<std::string>(), "8.3.RC1 or newer"));
  const auto refused =
      ascend_probe({{"ONECOPY_SIM_ASCEND_FAIL", "aclrtMemExportToShareableHandle=207000"}});
  EXPECT_EQ(refused.at("verdict"), "slower");
  EXPECT_TRUE(contains(refused.at("detail").get<std::string>(), "by key only"));
  const auto a_virtual_one = ascend_probe({{"ONECOPY_SIM_ASCEND_VIRTUAL", "1"}});
  EXPECT_EQ(a_virtual_one.at("verdict"), "slower");
  EXPECT_TRUE(contains(a_virtual_one.at("detail").get<std::string>(), "by key only of npu:1"));
}

TEST(Doctor, SaysInAReadableTableThatThisMachineWillDo) {
  const Outcome doctor = run_command({"doctor"});
  EXPECT_EQ(doctor.status, 0) << doctor.out;
  EXPECT_TRUE(contains(doctor.out, "Everything that onecopy needs for CPU tensors works here."));
}

TEST(Doctor, FitsIntoAHundredColumns) {
  std::istringstream table(
      run_command({"doctor"}, "", {{"ONECOPY_ASCEND_RUNTIME", "libnot-there.so"}}).out);
  std::size_t lines = 0;
  for (std::string line; std::getline(table, line); ++lines) {
    const bool has_path = line.find('/') != std::string::npos;  // which stays whole
    EXPECT_TRUE(has_path || line.size() <= 100) << line;
  }
  EXPECT_GT(lines, 20u);
}

TEST(Doctor, ReportsARuntimeDirectoryThatOthersCanEnter) {
  const TemporaryDirectory directory;
  std::filesystem::permissions(directory.path(), std::filesystem::perms::all);
  const Outcome doctor =
      run_command({"doctor", "--format", "json"}, "", {{"ONECOPY_RUNTIME_DIR", directory.path()}});
  const auto probes = nlohmann::json::parse(doctor.out).at("probes");
  const auto probe = std::find_if(probes.begin(), probes.end(),
                                  [](const auto& p) { return p.at("name") == "runtime directory"; });
  ASSERT_NE(probe, probes.end());
  EXPECT_EQ(probe->at("verdict"), "missing");
  EXPECT_TRUE(contains(probe->at("advice").get<std::string>(), "0700"));
}

using Probes = std::map<std::string, nlohmann::json>;

/// Doctor's report of a vendor with these variables set, by the name of the probe; on simulated devices.
Probes probes_of(const std::string& vendor, std::vector<std::pair<std::string, std::string>> variables) {
  variables.emplace_back("ONECOPY_CUDA_DRIVER", ONECOPY_BINARY_DIR "/simulators/cuda/libcuda.so.1");
  variables.emplace_back("ONECOPY_ASCEND_RUNTIME", ONECOPY_BINARY_DIR "/simulators/ascend/libascendcl.so");
  const Outcome doctor =
      run_command({"doctor", "--format", "json"}, "", {variables.begin(), variables.end()});
  Probes found;
  const auto report = nlohmann::json::parse(doctor.out);
  for (const auto& probe : report.at("probes"))
    if (probe.at("name").get<std::string>().rfind(vendor, 0) == 0) found[probe.at("name")] = probe;
  return found;
}

Probes cuda_probes(std::vector<std::pair<std::string, std::string>> variables) {
  return probes_of("CUDA", std::move(variables));
}

std::string text_of(const Probes& probes, const char* probe, const char* what) {
  return probes.at(probe).at(what).get<std::string>();
}

TEST(Doctor, TriesWhatCudaDevicesCanDo) {
  const auto probes = cuda_probes({});
  ASSERT_EQ(probes.size(), 7u);
  for (const auto& [name, probe] : probes) EXPECT_EQ(probe.at("verdict"), "ok") << probe;
  const std::string devices = probes.at("CUDA devices").at("detail");
  EXPECT_TRUE(contains(devices, "cuda:1 Simulated GPU 1, 1.0 GiB, 53494d75-")) << devices;
  EXPECT_TRUE(contains(probes.at("CUDA memory as a descriptor").at("detail").get<std::string>(),
                       "cuda:1 shared, read-only holds"));
  EXPECT_EQ(text_of(probes, "CUDA legacy handles", "detail"),
            "cuda:0 read by another process; cuda:1 read by another process");
  EXPECT_EQ(text_of(probes, "CUDA captured graphs", "verdict"), "ok");
}

TEST(Doctor, OpensMemoryOfCudaMallocInAnotherProcess) {
  const auto probes = cuda_probes({{"ONECOPY_SIM_CUDA_FAIL", "cuIpcOpenMemHandle=801"}});
  EXPECT_EQ(text_of(probes, "CUDA legacy handles", "verdict"), "slower");
  EXPECT_TRUE(contains(text_of(probes, "CUDA legacy handles", "detail"), "801"));
  EXPECT_TRUE(contains(text_of(probes, "CUDA legacy handles", "advice"), "expandable segments"));
  EXPECT_EQ(text_of(probes, "CUDA memory as a descriptor", "verdict"), "ok");
}

TEST(Doctor, TriesWhatAscendDevicesCanDo) {
  const auto probes = probes_of("Ascend", {});
  ASSERT_EQ(probes.size(), 5u);
  for (const auto& [name, probe] : probes) EXPECT_EQ(probe.at("verdict"), "ok") << probe;
  EXPECT_TRUE(contains(text_of(probes, "Ascend devices", "detail"), "npu:1 Ascend-simulated, 1.0 GiB"));
  EXPECT_EQ(text_of(probes, "Ascend peers", "detail"), "npu:1 uses npu:0; npu:0 uses npu:1");
}

TEST(Doctor, OpensAscendMemoryInAnotherProcess) {
  EXPECT_EQ(text_of(probes_of("Ascend", {}), "Ascend memory between processes", "detail"),
            "npu:0 read by another process; npu:1 read by another process");
  const auto refused =
      probes_of("Ascend", {{"ONECOPY_SIM_ASCEND_FAIL", "aclrtMemImportFromShareableHandle=507899"}});
  EXPECT_EQ(text_of(refused, "Ascend memory between processes", "verdict"), "missing");
  EXPECT_TRUE(contains(text_of(refused, "Ascend memory between processes", "detail"), "507899"));
}

TEST(Doctor, SaysWhatAscendDevicesCannotDo) {
  const auto apart = probes_of("Ascend", {{"ONECOPY_SIM_ASCEND_PEERS", "none"}});
  EXPECT_EQ(text_of(apart, "Ascend peers", "verdict"), "slower");
  EXPECT_TRUE(contains(text_of(apart, "Ascend peers", "detail"), "npu:0 cannot reach npu:1"));
  const auto virtuals = probes_of("Ascend", {{"ONECOPY_SIM_ASCEND_VIRTUAL", "all"}});
  EXPECT_EQ(text_of(virtuals, "Ascend memory between processes", "verdict"), "ok") << "by key";
}

TEST(Doctor, OpensAscendMemoryByItsKeyInAnotherProcess) {
  const auto probes = probes_of("Ascend", {});
  EXPECT_EQ(text_of(probes, "Ascend IPC keys", "detail"),
            "npu:0 read by another process; npu:1 read by another process");
  const auto refused = probes_of("Ascend", {{"ONECOPY_SIM_ASCEND_FAIL", "aclrtIpcMemImportByKey=207000"}});
  EXPECT_EQ(text_of(refused, "Ascend IPC keys", "verdict"), "slower");
  EXPECT_TRUE(contains(text_of(refused, "Ascend IPC keys", "detail"), "207000"));
}

TEST(Doctor, SaysWhatCudaDevicesCannotDo) {
  const auto probes =
      cuda_probes({{"ONECOPY_SIM_CUDA_PEERS", "0-1"},
                   {"ONECOPY_SIM_CUDA_MISSING", "cuStreamWaitValue64,cuStreamGetCaptureInfo"},
                   {"ONECOPY_SIM_CUDA_FAIL", "cuMemExportToShareableHandle=801"}});
  EXPECT_EQ(probes.at("CUDA memory as a descriptor").at("verdict"), "slower");
  EXPECT_EQ(probes.at("CUDA order of streams").at("verdict"), "slower");
  EXPECT_TRUE(contains(probes.at("CUDA order of streams").at("advice").get<std::string>(), "Hosts wait"));
  EXPECT_EQ(text_of(probes, "CUDA captured graphs", "verdict"), "slower");
  EXPECT_TRUE(contains(text_of(probes, "CUDA captured graphs", "detail"), "cuStreamGetCaptureInfo"));
  EXPECT_EQ(cuda_probes({{"ONECOPY_SIM_CUDA_PEERS", "none"}}).at("CUDA peers").at("verdict"), "slower");
}

TEST(Doctor, NeedsOneLineToSayThatThereIsNoDriver) {
  const auto probes = cuda_probes({{"ONECOPY_SIM_CUDA_DEVICES", "0"}});
  ASSERT_EQ(probes.size(), 1u);
  EXPECT_EQ(probes.at("CUDA").at("verdict"), "missing");
}

/// The entry of that process in `onecopy ls`. It leaves out processes that do not answer in time; then it is asked
/// again.
nlohmann::json listed_owner(int pid) {
  nlohmann::json owner;
  EXPECT_TRUE(eventually([&] {
    const Outcome ls = run_command({"ls", "--format", "json"});
    EXPECT_EQ(ls.status, 0) << ls.err;
    owner = owner_of(nlohmann::json::parse(ls.out), pid);
    return !owner.is_null();
  }));
  return owner;
}

TEST(Ls, ShowsTheOwnerItsMemoryAndItsBorrower) {
  const Watchdog watchdog(std::chrono::seconds(110));
  const TemporaryDirectory directory;
  write_file(directory.path() + "/small.safetensors", small_file());
  CommandProcess share({"share", directory.path() + "/small.safetensors"});
  CommandProcess open({"open", share.first_line(), "--hold"});
  ASSERT_TRUE(open.says("Holding")) << open.err();
  const auto owner = listed_owner(share.pid());
  ASSERT_FALSE(owner.is_null());
  EXPECT_GE(owner.at("stats").at("segments"), 1);
  EXPECT_GE(owner.at("stats").at("live_blocks"), 1);
  EXPECT_GE(owner.at("stats").at("live_bytes"), 64);
  EXPECT_TRUE(contains(owner.at("command").get<std::string>(), "onecopy share " + directory.path()));
  ASSERT_EQ(owner.at("borrowers").size(), 1u);
  EXPECT_EQ(owner.at("borrowers")[0].at("pid"), open.pid());
  EXPECT_EQ(owner.at("borrowers")[0].at("name"), "onecopy");
  EXPECT_TRUE(eventually([&] { return contains(run_command({"ls"}).out, std::to_string(share.pid())); }));
}

/// A process with 1 MiB on that device, as `onecopy ls` shows it: in JSON, and as a table with the lines below.
void expect_listed_by_its_device(const char* name) {
  Shared<Note> note;
  Child owner([&] {
    const Tensor tensor = empty(Layout(DType::u8, {1 << 20}), Device::parse(name));
    note->write(share(tensor).to_text());
    note->serve_until(2);
  });
  note->reach(1);
  const auto row = listed_owner(owner.pid());
  ASSERT_FALSE(row.is_null());
  ASSERT_EQ(row.at("devices").size(), 1u) << row;
  const auto& device = row.at("devices")[0];
  EXPECT_EQ(device.at("device"), name);
  EXPECT_EQ(device.at("segments"), 1);
  EXPECT_EQ(device.at("bytes"), 2 << 20);
  const std::string line = std::to_string(owner.pid()) + ": 1 segment on " + name + ", 2.0 MiB (" +
                           device.at("uuid").get<std::string>() + ")";
  const std::string pid = std::to_string(owner.pid());
  EXPECT_TRUE(eventually([&] { return contains(run_command({"ls", "-v", pid}).out, line); }));
  note->step = 2;
  EXPECT_EQ(owner.join(), 0);
}

TEST(Ls, SaysWhichCudaDeviceASegmentIsOn) { expect_listed_by_its_device("cuda:1"); }

TEST(Ls, SaysWhichAscendDeviceASegmentIsOn) { expect_listed_by_its_device("npu:1"); }

/// A directory for sockets of this test alone.
class LsInItsOwnDirectory : public ::testing::Test {
 protected:
  Watchdog watchdog{std::chrono::seconds(110)};
  TemporaryDirectory directory;
  const CommandProcess::Environment environment{{"ONECOPY_RUNTIME_DIR", directory.path()},
                                                {"ONECOPY_STORE_DIR", directory.path() + "/store"}};
};

TEST_F(LsInItsOwnDirectory, NamesWhoDoesNotAnswerBelowTheOthersAndInJson) {
  const TemporaryDirectory files;
  const std::string path = files.path() + "/small.safetensors";
  write_file(path, small_file());
  const CommandProcess alive({"share", path}, "", environment);
  const CommandProcess stopped({"share", path}, "", environment);
  ASSERT_TRUE(contains(alive.first_line() + stopped.first_line(), "onecopy:"));
  stopped.signal(SIGSTOP);
  ASSERT_EQ(::waitpid(stopped.pid(), nullptr, WUNTRACED), stopped.pid());

  const Outcome ls = run_command({"ls", "--format", "json"}, "", environment);
  EXPECT_EQ(ls.status, 0);
  EXPECT_EQ(ls.err, "");
  const auto listing = nlohmann::json::parse(ls.out);
  EXPECT_FALSE(owner_of(listing, alive.pid()).is_null()) << ls.out;
  ASSERT_EQ(listing.at("silent").size(), 1u) << ls.out;
  EXPECT_EQ(listing.at("silent")[0].at("pid"), stopped.pid());
  EXPECT_TRUE(contains(listing.at("silent")[0].at("why").get<std::string>(), "did not answer within 2 s"));
  EXPECT_TRUE(contains(run_command({"ls"}, "", environment).out,
                       "Not listed: process " + std::to_string(stopped.pid()) + " did not answer"));
}

/// Earlier callers fill its queue, and it takes none of them out.
TEST_F(LsInItsOwnDirectory, ListsAllOthersBesideOneThatHasNoRoomForACaller) {
  const TemporaryDirectory files;
  const std::string path = files.path() + "/small.safetensors";
  write_file(path, small_file());
  const CommandProcess alive({"share", path}, "", environment);
  ASSERT_TRUE(contains(alive.first_line(), "onecopy:"));
  const SocketName name{directory.path() + "/onecopy-" + std::string(32, '0'), false};  // asked first
  const UnixSocket full = UnixSocket::listen(name, 0);
  const UnixSocket caller = UnixSocket::connect(name, std::chrono::seconds(20));
  const Outcome ls = run_command({"ls", "--format", "json"}, "", environment);
  const auto listing = nlohmann::json::parse(ls.out);
  EXPECT_FALSE(owner_of(listing, alive.pid()).is_null()) << ls.out;
  ASSERT_EQ(listing.at("silent").size(), 1u) << ls.out;
  EXPECT_TRUE(contains(listing.at("silent")[0].at("why").get<std::string>(), "took no call within 2 s"));
}

TEST(Ls, SaysNothingOfOtherUsersSockets) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, who can become another user";
  const std::string digits = fmt::format("{:032x}", ::getpid());
  const std::string escapes = fmt::format("\033[31m{:027x}", ::getpid());
  auto [ready, line] = UnixSocket::pair();
  Child stranger([&, &line = line] {
    ASSERT_EQ(::setuid(65534), 0);
    std::vector<UnixSocket> sockets;
    for (const std::string& name : {digits, escapes}) {
      const SocketName full{"onecopy-" + name, true};
      sockets.push_back(UnixSocket::listen(full, 0));
      try {
        sockets.push_back(UnixSocket::connect(full, std::chrono::milliseconds(100)));
      } catch (const Error& error) {  // an `ls` of another test has filled its queue already
        ASSERT_EQ(error.code(), ErrorCode::timeout) << error.what();
      }
    }
    line.try_send(Bytes(1));
    ::pause();
  });
  ready.receive(std::chrono::seconds(20));
  for (const char* format : {"table", "json"}) {
    const Outcome ls = run_command({"ls", "--format", format});
    EXPECT_EQ(ls.status, 0) << ls.err;
    EXPECT_EQ(ls.out.find(digits), std::string::npos) << ls.out;
    EXPECT_EQ(ls.out.find("[31m"), std::string::npos) << ls.out;
  }
}

/// One after the other they would take minutes.
TEST_F(LsInItsOwnDirectory, AsksManyThatDoNotAnswerAtTheSameTime) {
  std::vector<UnixSocket> silent;
  for (int i = 0; i < 100; ++i) {
    const std::string number = std::to_string(i);
    const std::string name = std::string(32 - number.size(), '0') + number;
    silent.push_back(UnixSocket::listen({directory.path() + "/onecopy-" + name, false}));
  }
  const Outcome ls = run_command({"ls", "--format", "json"}, "", environment);
  EXPECT_EQ(ls.status, 0) << ls.err;
  EXPECT_EQ(nlohmann::json::parse(ls.out).at("silent").size(), silent.size());
}

TEST(Ls, ForgetsAnOwnerThatWasKilled) {
  const Watchdog watchdog(std::chrono::seconds(110));
  const TemporaryDirectory directory;
  write_file(directory.path() + "/small.safetensors", small_file());
  CommandProcess share({"share", directory.path() + "/small.safetensors"});
  ASSERT_TRUE(contains(share.first_line(), "onecopy:"));
  const int pid = share.pid();
  share.signal(SIGKILL);
  ASSERT_EQ(share.wait(), -SIGKILL);
  const auto listing = nlohmann::json::parse(run_command({"ls", "--format", "json"}).out);
  EXPECT_TRUE(owner_of(listing, pid).is_null());
}

/// Files in a directory of shared memory.
std::size_t files_in(const std::string& path) {
  const std::filesystem::directory_iterator files(path);
  return static_cast<std::size_t>(std::distance(begin(files), end(files)));
}

TEST(Gc, RefusesADirectoryThatDoesNotExist) {
  const Outcome gc = run_command({"gc"}, "", {{"ONECOPY_SHM_DIR", "/does/not/exist"}});
  EXPECT_EQ(gc.status, 1);
  EXPECT_TRUE(contains(gc.err, "/does/not/exist is not a directory"));
}

TEST(Gc, LeavesFilesAloneThatOnlyBeginLikeOurs) {
  const TemporaryDirectory memory;
  const std::string mine = memory.path() + "/onecopy-weights.safetensors";
  const std::string longer = memory.path() + "/onecopy-" + std::string(32, 'a') + "-1.safetensors";
  write_file(mine, "a user's own");
  write_file(longer, "a user's own");
  const Outcome gc = run_command({"gc"}, "", {{"ONECOPY_SHM_DIR", memory.path()}});
  EXPECT_EQ(gc.status, 0) << gc.err;
  EXPECT_EQ(read_file(mine), "a user's own");
  EXPECT_EQ(read_file(longer), "a user's own");
}

/// The file of an owner that was killed.
void leave_a_file(const std::string& path, const CommandProcess::Environment& environment) {
  CommandProcess killed({"share", path, "--strategy", "file_system"}, "", environment);
  ASSERT_TRUE(contains(killed.first_line(), "onecopy:"));
  killed.signal(SIGKILL);
  ASSERT_EQ(killed.wait(), -SIGKILL);
}

TEST(Gc, IsDoneByTheNextThatMakesMemoryWhateverItsStrategyAndNotByLs) {
  const Watchdog watchdog(std::chrono::seconds(110));
  const TemporaryDirectory directory;
  const TemporaryDirectory memory;
  const CommandProcess::Environment environment{{"ONECOPY_SHM_DIR", memory.path()}};
  const std::string path = directory.path() + "/small.safetensors";
  write_file(path, small_file());
  leave_a_file(path, environment);
  ASSERT_EQ(run_command({"ls"}, "", environment).status, 0);
  ASSERT_EQ(files_in(memory.path()), 1u);
  const CommandProcess next({"share", path}, "", environment);
  ASSERT_TRUE(contains(next.first_line(), "onecopy:"));
  EXPECT_EQ(files_in(memory.path()), 0u);
}

TEST(Gc, RemovesWhatAKilledOwnerLeftAndNothingElse) {
  const Watchdog watchdog(std::chrono::seconds(110));
  const TemporaryDirectory directory;
  const TemporaryDirectory memory;
  const CommandProcess::Environment environment{{"ONECOPY_SHM_DIR", memory.path()}};
  const std::string path = directory.path() + "/small.safetensors";
  write_file(path, small_file());
  CommandProcess alive({"share", path, "--strategy", "file_system"}, "", environment);
  ASSERT_TRUE(contains(alive.first_line(), "onecopy:"));
  const std::size_t in_use = files_in(memory.path());
  ASSERT_GE(in_use, 1u);
  CommandProcess killed({"share", path, "--strategy", "file_system"}, "", environment);
  ASSERT_TRUE(contains(killed.first_line(), "onecopy:"));
  ASSERT_GT(files_in(memory.path()), in_use);
  killed.signal(SIGKILL);
  ASSERT_EQ(killed.wait(), -SIGKILL);

  const Outcome gc = run_command({"gc", "--format", "json"}, "", environment);
  ASSERT_EQ(gc.status, 0) << gc.err;
  const auto report = nlohmann::json::parse(gc.out);
  EXPECT_EQ(report.at("directory"), memory.path());
  EXPECT_GE(report.at("files"), 1);
  EXPECT_EQ(report.at("in_use"), in_use);
  EXPECT_EQ(files_in(memory.path()), in_use);
  EXPECT_EQ(run_command({"open", alive.first_line()}, "", environment).status, 0);
}

}  // namespace
}  // namespace onecopy::testing
