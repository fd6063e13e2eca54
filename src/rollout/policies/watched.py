"""What a module that has no `spec` reads, found out at its first decision.

A bare module says nothing of what it reads. Delivering everything is right, and ruinous where it reads a state of 39
numbers and every decision renders a camera for it. So its first batch is watched: what it did not touch is not produced
from then on. A module that touches it later all the same is stopped with a message, never fed something else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["Watched"]


class Watched(dict[str, Any]):
    """A batch that notes which of its entries are used; `withheld` are those that exist but were not produced.

    Using a withheld entry, or all entries at once while some are withheld, raises `LookupError` with one line that says
    what to do.
    """

    def __init__(self, batch: Mapping[str, Any], withheld: frozenset[str] = frozenset()) -> None:
        super().__init__(batch)
        self.withheld = withheld
        self._read: set[str] = set()
        self._all = False

    @property
    def read(self) -> frozenset[str] | None:
        """The entries that were used; None where all of them were asked for at once."""
        return None if self._all else frozenset(self._read)

    def __getitem__(self, key: str) -> Any:
        self._note(key)
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        self._note(key)
        return super().__contains__(key)

    def get(self, key: str, default: Any = None) -> Any:
        """As of any dict."""
        self._note(key)
        return super().get(key, default)

    def pop(self, key: str, *default: Any) -> Any:
        """As of any dict."""
        self._note(key)
        return super().pop(key, *default)

    def __iter__(self) -> Iterator[str]:
        self._note_all()
        return super().__iter__()

    def __len__(self) -> int:
        self._note_all()
        return super().__len__()

    def keys(self) -> Any:
        """As of any dict."""
        self._note_all()
        return super().keys()

    def values(self) -> Any:
        """As of any dict."""
        self._note_all()
        return super().values()

    def items(self) -> Any:
        """As of any dict."""
        self._note_all()
        return super().items()

    def copy(self) -> dict[str, Any]:
        """As of any dict."""
        return dict(self.items())

    def _note(self, key: object) -> None:
        if key in self.withheld:
            raise self._late(repr(key))
        self._read.add(str(key))

    def _note_all(self) -> None:
        if self.withheld:
            raise self._late("all entries")
        self._all = True

    def _late(self, what: str) -> LookupError:
        return LookupError(
            f"the module did not read {what} at its first decision, so {', '.join(sorted(self.withheld))} "
            "is not produced; say what it reads: spec = rollout.PolicySpec(observation_keys=...)"
        )
