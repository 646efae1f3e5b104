"""Writes docs/settings.md from the settings themselves."""

from pathlib import Path

from evaluator.config.kinds import MAX_INTEGER_BITS, as_text
from evaluator.config.settings import MASK, SPECS, Settings

PAGE = Path(__file__).parent.parent / "docs" / "settings.md"

INTRODUCTION = f"""# Settings

This page is generated from `evaluator/config/settings.py`: `make generate`.

A setting comes from one of these sources; later ones have priority:

1. its default;
2. a TOML file: `--config FILE`, with the settings at the top level;
3. the environment: `EVALUATOR_` and the name in capitals, e.g. `EVALUATOR_RETENTION_MS=86400000`;
4. the command line: `--set name=value`, as often as needed.

```toml
retention_ms = 86400000
measures = ["top1", "ndcg@10"]
heartbeats = true
```

An unknown setting, or an invalid value, ends the program with exit code 2 and a line with its
source and the accepted values. Every variable of the environment
that begins with `EVALUATOR_` must be a setting, except those that Kubernetes injects for a
service called `evaluator` or `evaluator-...` (`EVALUATOR_SERVICE_HOST`,
`EVALUATOR_PORT_9464_TCP_ADDR`, `EVALUATOR_PORT=tcp://10.0.0.1:9464` and their like).

Durations are integers in milliseconds (`_ms`), of any size up to {MAX_INTEGER_BITS} bits. A
switch is `on` or `off` (also `true` or `false`). An empty text means "not set" where there is no
default. Settings marked *secret* are displayed as `{MASK}`.

Settings marked § change results: two runs with the same values of these agree bit for bit.
"""


def settings_page() -> str:
    """The page, from the settings as they are now."""
    defaults = Settings()
    semantic = defaults.semantic_settings()
    lines = [INTRODUCTION]
    group = ""
    for name, spec in SPECS.items():
        if spec.group != group:
            group = spec.group
            lines += [f"## {group}", "", "| setting | default | accepted | meaning |"]
            lines += ["|---|---|---|---|"]
        default = as_text(getattr(defaults, name))
        lines.append(
            f"| `{name}`{' §' if name in semantic else ''} | {f'`{default}`' if default else ''} "
            f"| {spec.kind.accepts} | {spec.meaning}{' (*secret*)' if spec.secret else ''} |"
        )
        if name == _last_of(group):
            lines.append("")
    return "\n".join(lines).rstrip("\n") + "\n"


def _last_of(group: str) -> str:
    return [name for name, spec in SPECS.items() if spec.group == group][-1]


if __name__ == "__main__":
    PAGE.write_text(settings_page(), "utf-8")
