"""A module of environments whose import never ends."""

from __future__ import annotations

from stuck import stick

stick()
