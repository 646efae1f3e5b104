"""OpenMetrics text of samples with timestamps.

Format: https://prometheus.io/docs/specs/om/open_metrics_spec
"""

import re
from collections.abc import Mapping
from typing import Final

from evaluator.exposition.series import Spec

END: Final = b"# EOF"

LABEL_NAME: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


def header(spec: Spec) -> list[bytes]:
    """The HELP and TYPE lines of a family; its name has no `_total`."""
    name = spec.name.removesuffix("_total")
    return [
        f"# HELP {name} {_escaped(spec.meaning)}".encode(),
        f"# TYPE {name} {spec.kind}".encode(),
    ]


def head(name: str, labels: Mapping[str, str]) -> bytes:
    r"""Name and labels of a sample.

    >>> head("up", {"job": 'a"b', "path": "c\\d"})
    b'up{job="a\\"b",path="c\\\\d"}'
    """
    pairs = ",".join(f'{label}="{_escaped(value)}"' for label, value in labels.items())
    return f"{name}{{{pairs}}}".encode() if pairs else name.encode()


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
