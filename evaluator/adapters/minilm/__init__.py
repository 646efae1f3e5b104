"""Sentence embeddings of all-MiniLM-L6-v2 with numpy; see docs/features.md."""

from evaluator.adapters.minilm.embedder import EmbedderMissingError as EmbedderMissingError
from evaluator.adapters.minilm.embedder import MiniLM as MiniLM
