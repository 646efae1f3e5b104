"""Reads files with secrets and certificates, without blocking on pipes."""

import os
import stat
from typing import Final

MAX_SECRET_BYTES: Final = 4_096
MAX_PEM_BYTES: Final = 4 << 20


def read_secret(path: str, *, most: int = MAX_SECRET_BYTES) -> bytes:
    """The content of a regular file of at most *most* bytes.

    Raises:
        OSError: if it cannot be read.
        ValueError: if it is a pipe, a device, a directory, or larger; the message does not contain
            the path, which may be the secret itself.
    """
    with open(path, "rb", opener=_non_blocking) as file:  # Path takes no opener
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("it is not a regular file")
        content = file.read(most + 1)
    if len(content) > most:
        raise ValueError(f"it has more than {most} bytes")
    return content


def read_password(path: str, setting: str) -> str:
    """The password in the file of a setting, without line ends.

    Raises ValueError with a sentence for operators, which has neither the path nor the bytes: both
    may be the password.
    """
    try:
        password = read_secret(path).decode("utf-8").rstrip("\r\n")
    except (OSError, ValueError) as error:
        why = "not UTF-8 text" if isinstance(error, UnicodeDecodeError) else reason_of(error)
        raise ValueError(
            f"The file of {setting} cannot be read: {why}. Point it to a readable file that holds "
            "the password alone."
        ) from None
    if not password:
        raise ValueError(
            f"The file of {setting} is empty. Write the password into it, and nothing else."
        )
    return password


def reason_of(error: Exception) -> str:
    """The text of an error without the path of its file."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _non_blocking(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def require_readable(*paths: str | None) -> None:
    """Raises OSError or ValueError for an unreadable file of certificates or keys."""
    for path in paths:
        if path is not None:
            read_secret(path, most=MAX_PEM_BYTES)
