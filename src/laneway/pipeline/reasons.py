"""What was wrong, out of Spark's many lines."""

from __future__ import annotations

import re

_OURS = re.compile(r"laneway\.errors\.\w+: (.+)")
_PYTHON = re.compile(r"^\w*(?:Error|Exception): (.+)$", re.MULTILINE)
_JAVA = re.compile(r"^(?:Caused by)?: [\w.$]+(?:Exception|Error): (.+)$", re.MULTILINE)
_CALLING = "An error occurred while calling"  # py4j's first line, which says nothing


def reason(text: str) -> str:
    """Our own error if there is one, else the last one of Python, else what Java says first; the innermost where that
    is only that a call failed."""
    patterns = [_OURS, _PYTHON, *([_JAVA] if text.startswith(_CALLING) else [])]
    found = next((all_found[-1] for pattern in patterns if (all_found := pattern.findall(text))), None)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return str(found if found is not None else lines[0] if lines else "no reason was given").strip()
