"""Cannot be imported, and says so rudely."""

from rude import WORDS

raise RuntimeError(WORDS)
