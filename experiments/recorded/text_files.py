"""Files of recorded traffic: read whole, within a bound, also compressed by gzip."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from stat import S_ISREG

from experiments.errors import BadInputError

MAX_FILE_BYTES = 256 << 20
"""Maximum size of a text file in bytes: some ten million requests."""

GZIP_MAGIC = b"\x1f\x8b"


def read_bytes(path: str, most: int = MAX_FILE_BYTES) -> bytes:
    """Read the first `most` bytes of a regular file, decompressed. Raises `BadInputError`."""
    try:
        status = Path(path).stat()
        if not S_ISREG(status.st_mode) or status.st_size > MAX_FILE_BYTES:
            raise BadInputError(f"load.file: {path}: must be a file of at most {MAX_FILE_BYTES >> 20} MiB")
        with Path(path).open("rb") as file:
            is_compressed = file.read(len(GZIP_MAGIC)) == GZIP_MAGIC
            file.seek(0)
            return (gzip.GzipFile(fileobj=file) if is_compressed else file).read(most)
    except (OSError, ValueError, EOFError, zlib.error) as error:  # ValueError: a NUL in the path
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "damaged"
        raise BadInputError(f"load.file: {path} cannot be read: {reason}") from None


def read_lines(path: str) -> list[str]:
    """Lines of a text file. Raises `BadInputError`."""
    content = read_bytes(path, MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise BadInputError(f"load.file: {path}: must be a file of at most {MAX_FILE_BYTES >> 20} MiB")
    try:
        return content.decode("utf-8").splitlines()
    except UnicodeDecodeError:
        raise BadInputError(f"load.file: {path} cannot be read: not text") from None
