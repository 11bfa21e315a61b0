"""The TOML file of an experiment, validated at once."""

from fedproof.config.experiment import Config, load_config, parse_config, validated
from fedproof.config.sections import Count, DataSection, PretrainConfig, Section

__all__ = [
    "Config",
    "Count",
    "DataSection",
    "PretrainConfig",
    "Section",
    "load_config",
    "parse_config",
    "validated",
]
