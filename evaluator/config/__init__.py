"""Settings and their sources; `cli` converts them to the values of other packages."""

from evaluator.config.kinds import ConfigError as ConfigError
from evaluator.config.load import load_settings as load_settings
from evaluator.config.settings import Settings as Settings
