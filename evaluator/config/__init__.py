"""Settings and their sources; `cli` converts them to the values of other packages."""

from evaluator.config.kinds import ConfigError
from evaluator.config.load import load_settings
from evaluator.config.settings import Settings

__all__ = ["ConfigError", "Settings", "load_settings"]
