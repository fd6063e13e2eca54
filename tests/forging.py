"""Answers in its worker's place while it is imported, with a message that is none to what was asked."""

import contextlib
import os
import time

import msgspec

from rollout.sim.protocol import Released

message = msgspec.msgpack.encode(Released())
for descriptor in range(3, 64):
    with contextlib.suppress(OSError):
        os.write(descriptor, len(message).to_bytes(4, "little") + message)
time.sleep(3600)
