"""What is known of the candidates of a query before anybody has judged them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

CandidateKind = Literal["tool", "graph"]


@dataclass(frozen=True, slots=True)
class Graph:
    """A candidate that is a graph. Of its nodes and edges only the numbers count."""

    type: str = ""
    text: str = ""
    n_nodes: int = 0
    n_edges: int = 0


@dataclass(frozen=True, slots=True)
class Described:
    """A query with its candidates, as far as features look at them.

    A tool's id is its name. `descriptions` (of tools; empty: there are none) and `graphs` are
    parallel to the candidates.
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
        """About how much memory it takes."""
        texts = (*self.candidate_ids, *self.descriptions)
        of_graphs = sum(200 + len(graph.type) + len(graph.text) for graph in self.graphs)
        return 300 + len(self.query) + sum(60 + len(text) for text in texts) + of_graphs

    def texts(self) -> list[str]:
        """What stands for each candidate beside the query: name and description, or the text.

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
        """What a candidate's history is kept under: a tool's name, a graph's type."""
        if self.kind == "graph":
            return [graph.type for graph in self.graphs]
        return list(self.candidate_ids)
