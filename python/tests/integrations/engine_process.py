# SPDX-License-Identifier: Apache-2.0
"""Programs that run an engine and answer lines of JSON, and the prompts that tests give to several engines."""

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import traceback
from pathlib import Path

#: The guide whose configurations the tests run.
GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "kv-pool-engines.md"


class EngineProcess:
    """A process with an engine. Its children are of its process group, which ends with it."""

    def __init__(self, folder, program, *arguments, is_awaited=True, **environment):
        self.log = Path(folder) / f"{Path(program).stem}-{random.randrange(1 << 32):08x}.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(program), *map(str, arguments)], stdin=-1, stdout=-1, stderr=log, text=True,
                env={**os.environ, **environment}, start_new_session=True,
            )  # fmt: skip
        if is_awaited:
            self.await_ready()

    def await_ready(self):
        """Waits until the engine answers. Engines that start beside each other are made with ``is_awaited=False``."""
        assert self.answer() == "ready"

    def answer(self):
        line = self.process.stdout.readline()
        assert line, f"the engine has ended: {self.log.read_text()[-5000:]}"
        return json.loads(line)

    def ask(self, *command):
        answer = self._answer_to(*command)
        assert not (isinstance(answer, dict) and "error" in answer), answer["error"]
        return answer

    def refusal(self, *command):
        """Returns the text of the error with which a command ends."""
        return self._answer_to(*command)["error"]

    def _answer_to(self, *command):
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        return self.answer()

    def kill(self):
        """Kills the engine with all its processes, as a container's end does. Does nothing the second time."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()

    def end(self):
        self.process.stdin.close()
        self.process.stdout.close()
        try:
            self.process.wait(60)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def serve(commands):
    """Answers lines of JSON by the methods of an object, until there are no more. What others print goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the engine's own processes print, too
    made = commands()
    print(json.dumps("ready"), file=answers, flush=True)
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        try:
            answer = getattr(made, name)(*arguments)
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__module__}.{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)
    made.engine.shutdown()


def guide_options(option):
    """Returns what the guide gives an engine for an option: its JSON."""
    [text] = re.findall(rf"{option}\s+\\?\s*'({{.*?}})'", GUIDE.read_text(), re.DOTALL)
    return json.loads(text)


def prompts(seed, count, prefixes, longest=480):
    """Returns random prompts that begin with a part of one of the prefixes."""
    rng = random.Random(seed)
    made = []
    for _ in range(count):
        prefix = rng.choice(prefixes)
        made.append(prefix[: rng.randrange(len(prefix) + 1)] + tokens(rng, rng.randrange(1, longest - len(prefix))))
    return made


def tokens(rng, count):
    return [rng.randrange(3, 512) for _ in range(count)]


def prefixes(seed, count=12, longest=360):
    rng = random.Random(seed)
    return [tokens(rng, rng.randrange(40, longest)) for _ in range(count)]


def reusable(prompt, earlier, page):
    """Returns how many tokens of a prompt are whole pages of an earlier prompt. An engine computes at least the last one."""
    best = 0
    for other in earlier:
        equal = next((i for i, (a, b) in enumerate(zip(prompt, other)) if a != b), min(len(prompt), len(other)))
        best = max(best, min(equal, len(prompt) - 1) // page * page)
    return best
