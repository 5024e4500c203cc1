"""What git needs of the environment to reach another host."""

from __future__ import annotations

import os
import re

_TRANSPORT = re.compile(
    "SSH_AUTH_SOCK|SSH_ASKPASS|GIT_SSH|GIT_SSH_COMMAND|GIT_ASKPASS|GIT_TERMINAL_PROMPT|GIT_SSL_.*"
    "|(?:https?|all|no)_proxy",
    re.IGNORECASE,
)


def transport() -> dict[str, str]:
    """What git needs to reach another host, and no more."""
    return {name: value for name, value in os.environ.items() if _TRANSPORT.fullmatch(name)}
