# SPDX-License-Identifier: Apache-2.0
"""deploy/: the container files name what exists, and Prometheus evaluates every expression of the dashboard and the alerts."""

import configparser
import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import socket
import string
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from pathlib import Path

import pytest

from support.store_group import present, publish, shown, wait_for, weights
from support.store_hosts import COMMAND, wait_until

yaml = pytest.importorskip("yaml")

DEPLOY = Path(__file__).parents[3] / "deploy"
PATIENCE = 60


def services() -> dict[str, dict]:
    return yaml.safe_load((DEPLOY / "compose.yml").read_text())["services"]


def rules() -> list[dict]:
    (group,) = yaml.safe_load((DEPLOY / "alerts.yml").read_text())["groups"]
    return group["rules"]


def panels() -> dict[str, str]:
    """Returns the expression of each panel of the dashboard by its title."""
    dashboard = json.loads((DEPLOY / "dashboard.json").read_text())
    return {panel["title"]: target["expr"] for panel in dashboard["panels"] for target in panel["targets"]}


def copied() -> list[str]:
    """Returns what the Dockerfile copies out of the checkout."""
    lines = re.findall(r"^COPY (?!--from)(.+)$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    return [word for line in lines for word in line.split()[:-1]]


def test_the_image_has_what_the_commands_of_the_services_run(repository):
    assert "deploy/metrics.py" in copied() and all((repository / path).exists() for path in copied())
    programs = {path.name for path in (repository / "examples/python").glob("*.py")} | {"metrics.py"}
    commands = [shlex.split(service["command"]) for name, service in services().items() if name != "prometheus"]
    assert len(commands) == 4
    for program, *words in commands:
        if program == "python":
            assert words[0] in programs
            continue
        assert program == "onecopy"
        command = [sys.executable, "-m", "onecopy", *words[:2], "--help"]
        help_text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert all(word in help_text for word in words if word.startswith("--"))


def test_the_services_share_one_user_and_one_directory():
    assert "USER onecopy" in (DEPLOY / "Dockerfile").read_text()
    of_onecopy = {name: service for name, service in services().items() if name != "prometheus"}
    assert {service["environment"]["ONECOPY_RUNTIME_DIR"] for service in of_onecopy.values()} == {"/run/onecopy"}
    assert all(service["volumes"] == ["runtime:/run/onecopy"] for service in of_onecopy.values())
    assert of_onecopy["engine"]["deploy"]["replicas"] == 2


def test_each_file_of_the_services_is_there():
    mounted = [volume.split(":")[0] for volume in services()["prometheus"]["volumes"]]
    assert all((DEPLOY / path).is_file() for path in mounted)
    settings = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    assert all((DEPLOY / path).is_file() for path in settings["rule_files"])
    (target,) = settings["scrape_configs"][0]["static_configs"][0]["targets"]
    host, port = target.split(":")
    assert services()[host]["command"].endswith(f"metrics.py {port}")


# ---- a group of hosts


def units() -> dict[str, configparser.ConfigParser]:
    """Returns the units of systemd by the names of their files."""
    parsed = {}
    for path in DEPLOY.glob("*.service"):
        parsed[path.name] = configparser.ConfigParser(strict=False, interpolation=None)
        parsed[path.name].optionxform = str
        parsed[path.name].read_string(path.read_text())
    return parsed


def filled_in(command: str, **variables: str) -> list[str]:
    """Returns the words of a command of a unit or a service behind the program's name."""
    program, *words = shlex.split(re.sub(r":-[^}]*", "", command).replace("%i", "llama"))
    assert Path(program).name == "onecopy"
    return [string.Template(word).substitute(variables) for word in words]


def status_of(host) -> str:
    command = [*COMMAND, "store", "status"]
    return subprocess.run(command, env={**os.environ, **host.environment}, capture_output=True, text=True).stdout


def test_the_commands_of_the_units_and_of_the_compose_file_make_a_group(hosts, etcd, tmp_path):
    compose = yaml.safe_load((DEPLOY / "group.yml").read_text())["services"]
    of_compose = compose["group"]["command"].replace("/var/lib/onecopy", f"{tmp_path}/state")
    made = []
    for command in (of_compose, units()["onecopy-group.service"]["Service"]["ExecStart"]):
        host = hosts()
        made.append(host)
        host.name = f"h{len(made) - 1}"
        keeper = host.start(*filled_in(compose["store"]["command"], MAX_BYTES="1GiB")[1:])
        wait_until(lambda host=host: "listens" in status_of(host))
        words = filled_in(command, LISTEN="127.0.0.1:0", GROUP="prod", ETCD=etcd.url)[1:]
        host.server = host.start(*words, "--name", host.name, XDG_STATE_HOME=f"{tmp_path}/state-of-unit")
        assert host.server.stdout.readline().startswith("Other hosts pull from ") and keeper.poll() is None
    first, second = made
    wait_until(lambda: present(first) == {"h0", "h1"})
    assert publish(first, 1) == 1
    wait_for([first, second], 1, 1)


def test_the_units_of_a_host_that_listens_and_of_one_that_pulls_bring_a_version(hosts):
    there, here = hosts(), hosts()
    there.connect().publish("llama", weights(3))
    words = filled_in(units()["onecopy-listen.service"]["Service"]["ExecStart"])[1:]
    listener = there.start(*[word.replace("0.0.0.0:7000", "127.0.0.1:0") for word in words])
    address = re.fullmatch(r"Other hosts pull from (\S+)\.\n", listener.stdout.readline()).group(1)
    here.start(*filled_in(units()["onecopy-pull@.service"]["Service"]["ExecStart"], SOURCE=address)[1:])
    wait_until(lambda: shown(here) == (1, 3))


def test_systemd_accepts_the_units(tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("wants systemd-analyze")
    names = sorted(units())
    for name in names:
        (tmp_path / name).write_text((DEPLOY / name).read_text().replace("/opt/venv/bin/onecopy", "/bin/true"))
    (tmp_path / "onecopy-store.service").write_text("[Service]\nExecStart=/bin/true\n")
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *[str(tmp_path / name.replace("@", "@llama")) for name in names]],
        env={**os.environ, "SYSTEMD_UNIT_PATH": f"{tmp_path}:"}, capture_output=True, text=True,
    )  # fmt: skip
    about = [line for line in done.stderr.splitlines() if "onecopy" in line]
    assert (done.returncode, about) == (0, [])


# ---- Prometheus itself, over the counters of a trainer and engines

TRAINER = """
import sys, time, onecopy
weights = {f"layer.{i}": onecopy.full(1000, float(i)) for i in range(4)}
handle = onecopy.share(weights)
store = onecopy.store.connect()
store.publish("weights", weights)
print(handle, flush=True)
while True:
    time.sleep(1)
    onecopy.share(weights)
    store.publish("weights", weights)
"""
ENGINE = """
import sys, time, onecopy
store = onecopy.store.connect()
live = store.follow("weights")
answers = onecopy.share(onecopy.zeros(3))  # memory of its own: the process is listed
while True:
    opened = onecopy.open(sys.argv[1])
    live.update()
    print("ready", flush=True)
    time.sleep(0.5)
"""


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def is_listening(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


@contextlib.contextmanager
def running(*command: str):
    """Runs a program until the end of the block."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_prometheus_gets_metrics_which_say_that_the_keeper_does_not_answer(store):
    halves = store.keeper().values()
    port = free_port()
    metrics = []
    with running(sys.executable, str(DEPLOY / "metrics.py"), str(port)):
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for pid in halves:
                os.kill(pid, number)
            wait_until(lambda: is_listening(port))
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE) as answer:
                metrics.append(answer.read().decode())
    assert [re.findall("^onecopy_store_up .*$", text, re.MULTILINE) for text in metrics] == [
        ["onecopy_store_up 0"],
        ["onecopy_store_up 1"],
    ]
    assert all("onecopy_build_info" in text for text in metrics)


class Prometheus:
    """Prometheus with the files of deploy/, which asks the exporter there each second."""

    def __init__(self, directory: Path, exporter: int) -> None:
        self.port = free_port()
        settings = (DEPLOY / "prometheus.yml").read_text()
        settings = settings.replace("5s", "1s").replace("metrics:9470", f"127.0.0.1:{exporter}")
        (directory / "prometheus.yml").write_text(settings)
        shutil.copy(DEPLOY / "alerts.yml", directory)
        self.command = ("prometheus", f"--config.file={directory}/prometheus.yml", f"--storage.tsdb.path={directory}/data",
                        f"--web.listen-address=127.0.0.1:{self.port}")  # fmt: skip

    def ask(self, path: str, **parameters: str) -> dict:
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]

    def values(self, expression: str) -> list[float]:
        """Returns the value of each series of an expression now. Raises HTTPError for an expression that is wrong."""
        return [float(series["value"][1]) for series in self.ask("query", query=expression)["result"]]

    def wait_until(self, expression: str, wanted: list[float]) -> None:
        deadline, found = time.monotonic() + PATIENCE, None
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):  # it does not listen yet
                found = self.values(expression)
                if found == wanted:
                    return
            time.sleep(0.2)
        pytest.fail(f"{expression} is {found}, not {wanted}")


@pytest.fixture(scope="module")
def serving(tmp_path_factory):
    """A Prometheus that has seen a trainer with two engines, and one more engine that was killed."""
    if shutil.which("prometheus") is None:
        pytest.skip("wants prometheus installed: apt-get install prometheus")
    directory, port = tmp_path_factory.mktemp("prometheus"), free_port()
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as programs:
        (directory / "sockets").mkdir(mode=0o700)
        patch.setenv("ONECOPY_RUNTIME_DIR", str(directory / "sockets"))
        patch.setenv("ONECOPY_STORE_DIR", str(directory / "store"))
        python = sys.executable
        programs.callback(subprocess.run, [python, "-m", "onecopy", "store", "stop"])
        trainer = programs.enter_context(running(python, "-c", TRAINER))
        handle = trainer.stdout.readline().strip()
        engines = [programs.enter_context(running(python, "-c", ENGINE, handle)) for _ in range(3)]
        assert [engine.stdout.readline() for engine in engines] == ["ready\n"] * 3
        programs.enter_context(running(python, str(DEPLOY / "metrics.py"), str(port)))
        prometheus = Prometheus(directory, port)
        programs.enter_context(running(*prometheus.command))
        prometheus.wait_until("onecopy_store_readers", [3])
        prometheus.wait_until("max(onecopy_borrowers)", [3])
        prometheus.wait_until("count(onecopy_opened_total)", [4])
        engines[2].send_signal(signal.SIGKILL)
        prometheus.wait_until("onecopy_store_readers", [2])
        prometheus.wait_until("max(onecopy_borrowers)", [2])
        yield prometheus


@pytest.mark.parametrize("title", panels())
def test_each_panel_of_the_dashboard_has_data(title, serving):
    deadline = time.monotonic() + PATIENCE
    while not serving.values(panels()[title]):  # a rate wants two samples
        assert time.monotonic() < deadline, panels()[title]
        time.sleep(0.2)


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_each_alert_can_be_evaluated_over_metrics_that_exist(rule, serving):
    serving.values(rule["expr"])
    known = set(serving.ask("label/__name__/values"))
    named = set(re.findall(r"\bonecopy_\w+", rule["expr"]))
    assert named and named <= known


def test_an_engine_that_was_killed_raises_the_alert_about_readers_alone(serving):
    serving.wait_until('count(ALERTS{alertname="OnecopyStoreLostReaders"})', [1])
    assert serving.values("count by (alertname) (ALERTS)") == [1]
    assert all(rule["health"] == "ok" for group in serving.ask("rules")["groups"] for rule in group["rules"])


def test_the_series_of_a_process_that_was_killed_end(serving):
    serving.wait_until("count(onecopy_opened_total)", [3])  # the trainer and two engines
