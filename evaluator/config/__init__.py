"""Settings: what exists, what each means, where its value may come from.

They end at the door: `cli` hands plain values to the parts.
"""

from evaluator.config.kinds import ConfigError
from evaluator.config.load import load_settings
from evaluator.config.settings import Settings

__all__ = ["ConfigError", "Settings", "load_settings"]
