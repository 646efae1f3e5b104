"""File systems of fsspec: local, S3, Google Cloud Storage, Azure."""

import re
from typing import Any, Final

from evaluator.ports import SourceUnusable
from evaluator.version import how_to_install

_MAX_REASON_CHARS: Final = 300


def file_system(url: str, extra: str) -> tuple[Any, str]:
    """The file system of a url, and the path in it.

    Raises SourceUnusable if a package or credentials are missing.
    """
    try:
        from fsspec.core import url_to_fs  # noqa: PLC0415 - an extra

        options = {"auto_mkdir": True} if url.startswith("file:") else {}
        files, root = url_to_fs(url, **options)
    except ImportError as error:
        raise SourceUnusable(
            f"{url} needs a further package: {error}. {how_to_install(extra)} s3://, gs:// and "
            "abfs:// need s3fs, gcsfs or adlfs too."
        ) from None
    except Exception as error:  # noqa: BLE001 - every file system has its own
        raise SourceUnusable(
            f"{url} cannot be used: {reason_of(error)}. Check its credentials and its spelling."
        ) from None
    return files, root


def reason_of(error: Exception) -> str:
    """Kind and text of an error, without the parameters of addresses, which can be secret."""
    text = re.sub(r"\?\S+", "?***", " ".join(str(error).split()))
    return f"{type(error).__name__}: {text}"[:_MAX_REASON_CHARS]
