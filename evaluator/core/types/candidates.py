"""Descriptions of candidates, from which features are made."""

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

CandidateKind = Literal["tool", "graph"]


class Graph(Struct, frozen=True):
    """A candidate that is a graph, with the numbers of its nodes and edges."""

    type: str = ""
    text: str = ""
    n_nodes: int = 0
    n_edges: int = 0


class Described(Struct, frozen=True):
    """A query with described candidates.

    The id of a tool is its name. `descriptions` (of tools; may be empty) and `graphs` are parallel
    to the candidates.
    """

    kind: CandidateKind
    query: str
    candidate_ids: Sequence[str]
    descriptions: Sequence[str] = ()
    graphs: Sequence[Graph] = ()

    def __post_init__(self) -> None:
        n = len(self.candidate_ids)
        parallel = self.graphs if self.kind == "graph" else self.descriptions or self.candidate_ids
        if len(parallel) != n:
            raise ValueError(f"{len(parallel)} descriptions or graphs for {n} candidates")

    @property
    def n_bytes(self) -> int:
        """Approximate memory in bytes."""
        texts = (*self.candidate_ids, *self.descriptions)
        of_graphs = sum(200 + len(graph.type) + len(graph.text) for graph in self.graphs)
        return 300 + len(self.query) + sum(60 + len(text) for text in texts) + of_graphs

    def texts(self) -> list[str]:
        """The text of each candidate: name and description of a tool, or the text of a graph.

        >>> Described("tool", "", ["search_flights"], ["Finds flights."]).texts()
        ['search flights. Finds flights.']
        """
        if self.kind == "graph":
            return [graph.text for graph in self.graphs]
        names = [name.replace("_", " ") for name in self.candidate_ids]
        descriptions = self.descriptions or [""] * len(names)
        pairs = zip(names, descriptions, strict=True)
        return [f"{name}. {description}" if description else name for name, description in pairs]

    def types(self) -> list[str]:
        """The type of each candidate in success rates: the name of a tool, the type of a graph."""
        if self.kind == "graph":
            return [graph.type for graph in self.graphs]
        return list(self.candidate_ids)
