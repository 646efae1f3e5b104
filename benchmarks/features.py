"""Results and cost of the two embedders.

`python -m benchmarks.features`: which of 16 tools a query means, by phi_rel alone, for queries that
share words with the right tool and for queries that share none; and the time of a text. Without the
extra `embeddings` the sentence model is left out.
"""

import argparse
import statistics
import time

import numpy as np

from evaluator.adapters.minilm import EmbedderMissingError, MiniLM
from evaluator.core.features import (
    Described,
    Embedder,
    HashedNgrams,
    Remembered,
    SuccessTable,
    features_of,
)
from evaluator.tables import format_table

# Name, description, a query in its words, a query in others.
TOOLS = [
    (
        "search_flights",
        "Finds flights between two airports.",
        "find flights from Oslo to Rome",
        "I must be in Madrid by plane on Monday",
    ),
    (
        "book_hotel",
        "Books a hotel room for some nights.",
        "book a hotel in Vienna",
        "somewhere to sleep in Prague this weekend",
    ),
    (
        "weather_forecast",
        "Tells the weather of a place in the coming days.",
        "what is the weather in Lima",
        "will I need an umbrella tomorrow",
    ),
    (
        "translate_text",
        "Translates a text into another language.",
        "translate this text into French",
        "how do you say good morning in Japanese",
    ),
    (
        "send_mail",
        "Sends a mail to somebody.",
        "send a mail to Ada",
        "let my boss know in writing that I am ill",
    ),
    (
        "create_event",
        "Creates an event in the calendar.",
        "create a calendar event on Friday",
        "schedule a meeting with the team",
    ),
    (
        "currency_rates",
        "Converts amounts between currencies.",
        "convert 20 euros to other currencies",
        "how many dollars is 50 pounds",
    ),
    ("play_music", "Plays songs and albums.", "play some music", "put on something by the Beatles"),
    (
        "news_search",
        "Searches the newspapers of today.",
        "search the news about the election",
        "what happened in the world this morning",
    ),
    (
        "stock_quotes",
        "Gives the prices of shares.",
        "stock quotes of large shares",
        "how is Apple doing on the exchange",
    ),
    (
        "recipe_finder",
        "Finds recipes for ingredients.",
        "find a recipe with rice",
        "what can I cook with eggs and spinach",
    ),
    (
        "route_planner",
        "Plans routes by car, bike or on foot.",
        "plan a route by bike",
        "directions from home to the leadership",
    ),
    ("image_resize", "Changes the size of images.", "resize the image", "make this photo smaller"),
    (
        "sql_query",
        "Runs a query on the database.",
        "run a SQL query on the database",
        "count the rows of the customers table",
    ),
    (
        "code_review",
        "Reviews code and finds bugs.",
        "review my code for bugs",
        "is there a mistake in this Python function",
    ),
    (
        "unit_converter",
        "Converts lengths, weights and temperatures.",
        "convert weights and lengths",
        "how many miles are ten kilometres",
    ),
]


def ranks(embedder: Embedder, place: int) -> list[int]:
    """The rank of the right tool by phi_rel, for each query in that column of TOOLS."""
    names, descriptions = ([tool[part] for tool in TOOLS] for part in (0, 1))
    found = []
    for right, tool in enumerate(TOOLS):
        query = Described("tool", tool[place], names, descriptions)
        relevances = features_of(query, embedder=embedder, history=SuccessTable())[:, 0]
        found.append(int((relevances >= relevances[right]).sum()))
    return found


def seconds_per_text(embedder: Embedder, texts: list[str]) -> float:
    began = time.perf_counter()
    embedder.embed(texts)
    return (time.perf_counter() - began) / len(texts)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.features", description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    embedders: dict[str, Embedder] = {"hashed n-grams": HashedNgrams()}
    try:
        embedders["sentence model"] = MiniLM()
    except EmbedderMissingError as error:
        print(error)
    texts = [f"{name}. {description}" for name, description, *_ in TOOLS]
    times: dict[str, list[float]] = {name: [] for name in embedders}
    for _ in range(rounds):
        for name, embedder in embedders.items():
            times[name].append(seconds_per_text(embedder, texts))
    rows = []
    for name, embedder in embedders.items():
        same, other = (ranks(Remembered(embedder), place) for place in (2, 3))
        of_queries = [each for found in (same, other) for each in (first(found), reciprocal(found))]
        rows.append([name, *of_queries, f"{statistics.median(times[name]) * 1e6:,.0f}"])
    heads = ["embedder", "same words: first", "mrr", "other words: first", "mrr", "us per text"]
    print(format_table(heads, rows, numbers=range(1, 6)))
    if len(rows) == 2:
        hashed, model = (np.array(each) for each in times.values())
        print(f"the sentence model takes {np.median(model / hashed):.0f} times as long")


def first(found: list[int]) -> str:
    return f"{sum(rank == 1 for rank in found)} of {len(found)}"


def reciprocal(found: list[int]) -> str:
    return f"{statistics.mean(1 / rank for rank in found):.2f}"


if __name__ == "__main__":
    main()
