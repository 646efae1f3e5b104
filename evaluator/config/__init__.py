"""Settings, and where their values come from; `cli` turns them into the values of other rooms."""

from evaluator.config.kinds import ConfigError
from evaluator.config.load import load_settings
from evaluator.config.settings import Settings

__all__ = ["ConfigError", "Settings", "load_settings"]
