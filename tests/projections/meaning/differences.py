"""What still differs from Postgres without a word, or is taken though Postgres refuses it: kind by kind, its forms.

The list may only get shorter: a case that is right has to leave it."""

from __future__ import annotations

DIFFERENT: dict[str, str] = {}
