"""Takes the place of `torchrelay.shim.runtime.runtime`: watches every loop, changes nothing, and writes down its calls."""

from __future__ import annotations

import os
import socket
import sys
import threading
from pathlib import Path

from torchrelay.protocol.errors import RefusedError
from torchrelay.protocol.messages import Ack, Hello
from torchrelay.protocol.transport import wire
from torchrelay.shim.script.hidden_frames import hide_this_frame
from torchrelay.shim.script.sites import SITES


class Loop:
    def __init__(self, hooks, site, iterable):
        self.hooks, self.site, self.iterator = hooks, site, iter(iterable)

    def __iter__(self):
        return self

    def __next__(self):
        try:
            item = next(self.iterator)
        except BaseException as e:
            hide_this_frame(e)
            raise
        self.hooks.heads[self.site] += 1
        return item


class Hooks:
    def __init__(self):
        self.pid = os.getpid()
        self.heads = {}
        self.nexts = 0

    def enter(self, site):
        assert site in SITES
        self.heads.setdefault(site, 0)
        return len(self.heads)

    def loop(self, site, token, iterable):
        assert token
        if os.getpid() != self.pid:
            return iterable
        try:
            return Loop(self, site, iterable)
        except BaseException as e:
            e.__traceback__ = e.__traceback__.tb_next  # the entry of Loop.__init__
            hide_this_frame(e)
            raise

    def tick(self, site):
        self.heads[site] += 1

    def again(self, site):
        return False

    def rewound(self, site):
        assert site in self.heads
        return False

    def next(self, iterator, *default):
        self.nexts += 1
        try:
            return next(iterator, *default)
        except BaseException as e:
            hide_this_frame(e)
            raise


class Runtime:
    def __init__(self, log, is_spare=False):
        self.hooks = Hooks()
        self.log = log
        self.is_spare = is_spare
        self.pid = os.getpid()

    @classmethod
    def connect(cls, config):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.connect(config.socket)
        version = ".".join(map(str, sys.version_info[:3]))
        sock.sendall(wire.encode(Hello(config.worker, config.token, os.getpid(), version, config.spare)))
        if not isinstance(wire.receive(sock, wire.ORDERS), Ack):
            raise RefusedError("no Ack")
        runtime = cls(Path(config.journal, "calls"), config.spare)
        sock.detach()  # an object would warn when the interpreter ends and it is still open
        return runtime

    def note(self, text):
        assert os.getpid() == self.pid
        with open(self.log, "a") as file:
            file.write(text + "\n")

    def park(self):
        self.note("park")
        os.environ["RANK"] = "7"

    def begin_set_up(self):
        pass

    def numpy_imported(self, module):
        pass

    def part_imported(self, module):
        pass

    def accelerate_imported(self, module):
        self.note(f"accelerate imported: {module.__name__}")

    def torch_imported(self):
        self.note(f"torch imported: {'torch' in sys.modules}")

    def disable(self, reason):
        self.note(f"disable: {reason}")

    def finish(self, failure):
        os.write(2, os.environ.get("INERT_FINISH_WRITES", "").encode())
        if "INERT_FINISH_STARTS_A_THREAD" in os.environ:
            thread = threading.Thread(target=print, args=("in a thread",), daemon=True)
            thread.start()
            thread.join()
        self.note(f"finish: {failure!r} heads={sum(self.hooks.heads.values())} nexts={self.hooks.nexts}")
        if "INERT_FINISH_IS_INTERRUPTED" in os.environ:
            raise KeyboardInterrupt
