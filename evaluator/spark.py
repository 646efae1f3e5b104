"""A backfill on Spark: each task of the evaluator in one task of Spark. For `spark-submit`.

Records are shuffled once, by partition, and sorted by (partition, running maximum of the record
timestamp, log, offset), so that a task reads both logs in the order of time.
"""

import argparse
import json
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace
from pyspark import SparkFiles
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as sql
from pyspark.sql.pandas.types import from_arrow_schema

from evaluator.adapters.files.arrow import COLUMNS
from evaluator.backfill import QUERIES, SUMMARIES, merge, result_schema, run_task
from evaluator.cli.execution import settings_of
from evaluator.cli.exits import INPUT_UNUSABLE, USAGE, UsageError, fail
from evaluator.cli.ranges import require_no_keys
from evaluator.cli.wiring import topic_names
from evaluator.config import ConfigError, Settings
from evaluator.config.measures import measure_set
from evaluator.ports import RequestRefused, SourceUnusable
from evaluator.replay.writing import AtEnd

NEEDED: Final = ("topic", "partition", "offset", "timestamp", "value")
"""Columns of the records, as Spark reads them from Kafka; `key` is optional."""
BATCH_BYTES: Final = 16 << 20
"""Limit of an Arrow batch."""
_RAISED: Final = re.compile(r"^evaluator\.[\w.]+: (.+)$", re.MULTILINE)
"""The error of a task in the error of Spark."""
_MS_WITHOUT_ZONE: Final = (
    "(timestamp - timestamp_ntz'1970-01-01 00:00:00') div interval '0 00:00:00.001' day to second"
)
"""A cast would depend on the zone of the session."""
_WINDOW: Final = (
    "start_ms bigint, end_ms bigint, model string, variant string, ranker string, measure string, "
    "queries decimal(38,0), sum_units decimal(38,0)"
)


def results_of(
    records: DataFrame,
    settings: Settings,
    *,
    at_end: AtEnd = "settle",
    queries: Collection[str] = QUERIES,
    n_partitions: int = 0,
) -> DataFrame:
    """The results of all tasks, in the columns of `evaluator.backfill.result_schema`.

    Args:
        records: has the columns NEEDED, the timestamp as a time or in ms; times without a zone are
            in UTC. A repeated record counts once.
        settings: a mapping is read here and sent to the executors.
        at_end: as in `evaluator replay`.
        queries: as in `run_task`.
        n_partitions: of the shuffle; by default `spark.sql.shuffle.partitions`. Each has the tasks
            with one remainder of their number.
    """
    require_no_keys(settings)
    spark, names = records.sparkSession, topic_names(settings)
    if missing := [name for name in NEEDED if name not in records.columns]:
        raise UsageError(
            f"the records have no column {', '.join(missing)}. Give {', '.join(NEEDED)}, and key "
            "if there is one; rename columns in a view of your own."
        )
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(settings.max_poll_records))
    spark.conf.set("spark.sql.execution.arrow.maxBytesPerBatch", str(BATCH_BYTES))
    if settings.mapping is not None:
        spark.sparkContext.addFile(settings.mapping)
    time = sql.col("timestamp")
    times = {"timestamp": sql.unix_millis(time), "timestamp_ntz": sql.expr(_MS_WITHOUT_ZONE)}
    time_ms = times.get(dict(records.dtypes)["timestamp"], time.cast("bigint"))
    key = sql.col("key") if "key" in records.columns else sql.lit(None)
    log = sql.when(sql.col("topic") == names["rankings"], "rankings").otherwise("judgments")
    columns = (log, sql.col("offset").cast("bigint"), time_ms, key.cast("binary"), "value")
    rows = records.where(sql.col("topic").isin(*names.values())).select(
        sql.col("partition").cast("int").alias("task"),
        *(
            (sql.col(of).cast("binary") if isinstance(of, str) else of).alias(name)
            for name, of in zip(COLUMNS, columns, strict=True)
        ),
    )
    before = Window.partitionBy("task", "log").orderBy("offset")
    before = before.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    n_partitions = n_partitions or int(str(spark.conf.get("spark.sql.shuffle.partitions")))
    return (
        rows.repartitionById(n_partitions, "task")
        .withColumn("clock_ms", sql.max("timestamp_ms").over(before))
        .sortWithinPartitions("task", "clock_ms", "log", "offset")
        .mapInArrow(
            partial(_evaluate, settings=settings, at_end=at_end, queries=queries),
            from_arrow_schema(result_schema()),
        )
    )


def _evaluate(batches: Iterable[Any], *, settings: Settings, **options: Any) -> Iterator[Any]:
    """The results of the tasks of one partition of Spark, one after the other."""
    if settings.mapping is not None:
        settings = replace(settings, mapping=SparkFiles.get(Path(settings.mapping).name))
    for task, of_task in groupby(_by_task(batches), key=itemgetter(0)):
        yield from run_task(task, (rows for _, rows in of_task), settings, **options)


def _by_task(batches: Iterable[Any]) -> Iterator[tuple[int, Any]]:
    """The parts of sorted batches with one task each."""
    for batch in batches:
        tasks = batch.column("task").to_numpy(zero_copy_only=False)
        first = 0
        while first < len(tasks):
            end = first + int((tasks[first:] == tasks[first]).sum())
            if end == first:
                raise SourceUnusable("records have no partition. Leave them out.")
            yield int(tasks[first]), batch.slice(first, end - first)
            first = end


def write_results(results: DataFrame, out: str, settings: Settings) -> dict[str, Any]:
    """Writes tables, windows and the merged summary below *out*; returns the summary.

    The folder `summary` is the last: a backfill without its `_SUCCESS` has not ended.
    """
    spark = results.sparkSession
    results.write.partitionBy("table").parquet(f"{out}/tables")
    tables = spark.read.schema(results.schema).parquet(f"{out}/tables")
    lines = tables.where(sql.col("table") == SUMMARIES).select("line").orderBy("task")
    text = merge(row["line"] for row in lines.toLocalIterator())
    summary: dict[str, Any] = json.loads(text)
    _windows(tables, summary["manifest"], settings).write.parquet(f"{out}/windows")
    spark.createDataFrame([(text,)], "value string").coalesce(1).write.text(f"{out}/summary")
    return summary


def _windows(tables: DataFrame, manifest: dict[str, Any], settings: Settings) -> DataFrame:
    """The windows, summed over the tasks; of queries that are held, those that are final."""
    parsed = sql.from_json("line", _WINDOW).alias("window")
    windows = tables.where(sql.col("table") == "windows").select(parsed).select("window.*")
    if manifest["settings"]["at_end"] == "hold":
        ends = [of["watermark_ms"] for of in manifest["tasks"].values()]
        known = -1 if None in ends else min(ends)
        windows = windows.where(sql.col("end_ms") - 1 + settings.retention_ms < known)
    sums = (sql.sum(name).cast("decimal(38,0)").alias(name) for name in ("queries", "sum_units"))
    keys = ("start_ms", "end_ms", "model", "variant", "ranker", "measure")
    return windows.groupBy(*keys).agg(*sums)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a backfill; returns its exit code."""
    options = _parser().parse_args(arguments)
    try:
        settings = settings_of(options)
        measure_set(settings)  # refuses unsupported combinations
        given = dict(_named(each) for each in options.option)
        spark = SparkSession.builder.appName("evaluator backfill").getOrCreate()
        spark.conf.set("spark.sql.session.timeZone", "UTC")
        records = spark.read.format(options.format).options(**given).load(options.input)
        results = results_of(
            records,
            settings,
            at_end=options.at_end,
            queries=options.queries,
            n_partitions=options.partitions,
        )
        summary = write_results(results, options.out, settings)
    except (ConfigError, UsageError, RequestRefused, ValueError) as error:
        return fail(error, USAGE)
    except SourceUnusable as error:
        return fail(error, INPUT_UNUSABLE)
    except PySparkException as error:
        raised = _RAISED.search(str(error))
        return fail(raised[1] if raised else str(error).partition("\n")[0], INPUT_UNUSABLE)
    counts = ", ".join(f"{n:,} {name}" for name, n in summary["manifest"]["counts"].items())
    print(f"{len(summary['manifest']['tasks'])} tasks: {counts}; tables in {options.out}")
    return 0


def _named(option: str) -> tuple[str, str]:
    name, equals, value = option.partition("=")
    if not equals:
        raise UsageError(f"--option {option} has no value: write NAME=VALUE.")
    return name, value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="evaluator.spark", description=__doc__.split("\n")[0])
    add: Callable[..., Any] = parser.add_argument
    add("--input", help="the records: a path for Spark; none for --format kafka")
    add("--format", default="parquet", help="format of the input (parquet)")
    add("--option", action="append", default=[], metavar="NAME=VALUE", help="of this format")
    add("--out", required=True, help="new folder for the results")
    add("--config", type=Path, metavar="FILE", help="settings as TOML")
    add("--mapping", metavar="FILE", help="mapping of foreign records")
    add("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting")
    add("--at-end", choices=("settle", "hold"), default="settle", help="as in `evaluator replay`")
    add("--queries", nargs="*", choices=QUERIES, default=QUERIES, help="tables of queries")
    add("--partitions", type=int, default=0, help="partitions of the shuffle")
    return parser


if __name__ == "__main__":
    sys.exit(main())
