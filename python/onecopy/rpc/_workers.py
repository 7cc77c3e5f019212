# SPDX-License-Identifier: Apache-2.0
"""Threads that run callbacks and late answers: one more whenever all others are busy, so that none waits for another."""

import queue
import threading
import time
import traceback

_MOST = 1024


class Workers:
    """Thread safety: all members may be called concurrently. After stop() nothing is run any more."""

    def __init__(self, name):
        self._name, self._tasks, self._lock = name, queue.SimpleQueue(), threading.Lock()
        self._threads, self._idle, self._is_stopped = [], 0, False

    def run(self, task, *arguments):
        with self._lock:
            if self._is_stopped:
                return
            self._tasks.put((task, arguments))
            if self._idle < self._tasks.qsize() and len(self._threads) < _MOST:
                thread = threading.Thread(target=self._work, name=f"onecopy-rpc-{self._name}", daemon=True)
                self._threads.append(thread)
                thread.start()

    def stop(self, seconds):
        """Returns when all threads but the caller's have ended, after `seconds` at the latest."""
        end = time.monotonic() + seconds
        with self._lock:
            self._is_stopped = True
            threads, self._threads = self._threads, []
            for _ in threads:
                self._tasks.put((None, ()))
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(end - time.monotonic(), 0))

    def _work(self):
        while True:
            with self._lock:
                self._idle += 1
            task, arguments = self._tasks.get()
            with self._lock:
                self._idle -= 1
            if task is None:
                return
            try:
                task(*arguments)
            except Exception:
                traceback.print_exc()
            task = arguments = None
