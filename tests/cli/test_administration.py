"""`evaluator topics` and `evaluator schema`, without a broker."""

import pytest

from evaluator.adapters.kafka import TopicPlan
from evaluator.cli import administration, main

SOURCE = "--source=kafka://localhost:9092"


@pytest.fixture
def broker(monkeypatch):
    """A function that says how many partitions either input has; `created` is what was made."""
    created = []

    def have(rankings, judgments):
        async def plan_topics(connection, *, topic_prefix, partitions):
            n = rankings or judgments or partitions
            inputs = {"rankings": rankings, "judgments": judgments}
            # An output may have more partitions than the inputs; that count is no one's to ask for.
            return [
                *(TopicPlan(f"p-{name}", n, "delete", there) for name, there in inputs.items()),
                TopicPlan("p-totals", 64, "compact", 64),
            ]

        async def create_topics(connection, plan, *, replication_factor):
            created.extend(topic.name for topic in plan if topic.missing)
            return created

        monkeypatch.setattr(administration, "plan_topics", plan_topics)
        monkeypatch.setattr(administration, "create_topics", create_topics)
        return created

    return have


def topics(action, *arguments):
    return main(["topics", action, SOURCE, "--set", "topic_prefix=p-", *arguments])


@pytest.mark.parametrize("action", ["plan", "create"])
@pytest.mark.parametrize("counts", [(4, 4), (4, None), (None, 4)])
@pytest.mark.parametrize("asked", ["8", "0", "64"])
def test_another_partition_count_than_there_is_is_refused(broker, capsys, action, counts, asked):
    created = broker(*counts)
    assert topics(action, "--partitions", asked) == 2
    out, err = capsys.readouterr()
    assert f"there are 4 partitions, not {asked}; existing topics keep their count" in err
    assert (out, err.count("\n"), created) == ("", 1, [])


@pytest.mark.parametrize("arguments", [(), ("--partitions", "4")])
def test_the_count_that_there_is_may_be_said_or_left_out(broker, arguments):
    created = broker(4, None)
    assert topics("plan", *arguments) == 0
    assert created == []
    assert topics("create", *arguments) == 0
    assert created == ["p-judgments"]


def test_new_inputs_get_the_count_asked_for(broker, capsys):
    broker(None, None)
    assert topics("plan", "--partitions", "8") == 0
    assert capsys.readouterr().out.splitlines()[1].split() == [
        *("p-rankings", "8", "delete", "missing")
    ]


def test_schema_offers_no_settings(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["schema", "--help"])
    text = capsys.readouterr().out
    assert "--config" not in text
    assert "--set" not in text


def test_schema_prints_names_and_documents(capsys):
    assert main(["schema"]) == 0
    assert "ranking" in capsys.readouterr().out
    assert main(["schema", "nothing"]) == 2
    assert "There is no schema nothing" in capsys.readouterr().err
