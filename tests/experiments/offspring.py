"""Which processes a process has started and not waited for."""

from __future__ import annotations

from pathlib import Path


def children_of(pid: int) -> set[str]:
    """Process ids of the direct children of its first thread, as Linux tells them; none elsewhere."""
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return set(path.read_text(encoding="ascii").split()) if path.exists() else set()
