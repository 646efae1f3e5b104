"""Files: logs in a directory, offline samples, and single files."""

from evaluator.adapters.files.archives import ArchiveRange as ArchiveRange
from evaluator.adapters.files.documents import NewFile as NewFile
from evaluator.adapters.files.documents import read_file as read_file
from evaluator.adapters.files.documents import result_lines as result_lines
from evaluator.adapters.files.logs import MAX_PARTITIONS as MAX_PARTITIONS
from evaluator.adapters.files.logs import FileRange as FileRange
from evaluator.adapters.files.logs import is_log_file as is_log_file
from evaluator.adapters.files.samples import SampleRange as SampleRange
