"""Times as people type them: a date, an ISO time, or how long ago."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from libmachine.errors import UsageError

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def since(text: str) -> str:
    """The moment meant, as records write it (UTC). `2026-11-29`, `2026-11-29T12:00`, `90m`, `2d`.

    A time without a zone is local. Raises UsageError.
    """
    ago = re.fullmatch(r"(\d+)([smhdw])", text)
    try:
        if ago:
            moment = datetime.now(UTC) - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        else:
            moment = datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        raise UsageError(
            f"'{text}' is no time; write 2026-11-29, 2026-11-29T12:00, or 90m, 12h, 2d ago"
        ) from None
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
