"""Which policies can be loaded or reached beside your own modules; what is missing is no fault."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rollout.doctor.findings import Finding

__all__ = ["NAMES", "check_policies"]

NAMES: Final = ("lerobot", "websockets", "pyzmq")
REMOTE: Final = {"websockets": "openpi:… and rollout serve", "pyzmq": "gr00t:…"}


def check_policies(versions: Mapping[str, str]) -> list[Finding]:
    """One finding for LeRobot's policies, and one for those on servers."""
    lerobot = versions.get(
        "lerobot", "not installed: no lerobot:… (it needs Python 3.12, see docs/lerobot.md)"
    )
    present = [f"{name} {versions[name]}" for name in REMOTE if name in versions]
    absent = [f"no {what}" for name, what in REMOTE.items() if name not in versions]
    how = ["pip install 'rollout-engine[remote]'"] if absent else []
    return [
        Finding(level="ok", subject="lerobot", detail=lerobot),
        Finding(level="ok", subject="remote", detail=", ".join(present + absent + how)),
    ]
