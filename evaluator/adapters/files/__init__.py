"""Files: logs in a directory, offline samples, and single files."""

from evaluator.adapters.files.archives import ArchiveRange
from evaluator.adapters.files.documents import NewFile, read_file, result_lines
from evaluator.adapters.files.logs import MAX_PARTITIONS, FileRange, find_logs, is_log_file
from evaluator.adapters.files.samples import SampleRange
from evaluator.adapters.files.streams import MAX_KEPT_LINE_BYTES, Lines

__all__ = [
    "MAX_KEPT_LINE_BYTES",
    "MAX_PARTITIONS",
    "ArchiveRange",
    "FileRange",
    "Lines",
    "NewFile",
    "SampleRange",
    "find_logs",
    "is_log_file",
    "read_file",
    "result_lines",
]
