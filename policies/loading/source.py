"""The source of a policy as it was read: its file, and the modules beside it that it imported."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

MAX_SOURCE_BYTES = 1 << 20
"""Bytes that the files of one policy may have together; processes of one balancer send them to each other."""


@dataclass(frozen=True, slots=True)
class Source:
    """Contents by path. `path` is the policy's file, or the file of its module; the keys of `files` are relative to
    its directory."""

    path: str
    files: Mapping[str, bytes]

    @property
    def version(self) -> str:
        """Twelve digits of the SHA-256 of the file, and of the names and contents of the modules beside it, if any."""
        main = os.path.basename(self.path)
        digest = hashlib.sha256(self.files[main])
        for name in sorted(self.files.keys() - {main}):
            digest.update(b"\0%b\0%b" % (name.encode("utf-8", "surrogateescape"), self.files[name]))
        return digest.hexdigest()[:12]

    @property
    def paths(self) -> frozenset[str]:
        """Absolute paths of all files."""
        directory = os.path.dirname(self.path)
        return frozenset(os.path.join(directory, name) for name in self.files)

    def as_dict(self) -> dict[str, Any]:
        """Return the source for JSON; Latin-1 keeps every byte."""
        return {
            "path": self.path,
            "files": {name: content.decode("latin-1") for name, content in self.files.items()},
        }

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Self:
        files = {name: content.encode("latin-1") for name, content in document["files"].items()}
        return cls(document["path"], files)
