"""The watch of alarms in the leader: its state, the operator's commands, and its records."""

from collections.abc import Sequence

import numpy as np
import structlog

from evaluator.core.online.alarm_watch import AlarmWatch, WatchResult
from evaluator.core.online.views import AlarmsView
from evaluator.core.online.watched import WatchRules
from evaluator.core.online.watched_queries import WatchedQueries
from evaluator.core.types.records import WatermarkRecord
from evaluator.wire.alarms.records import AlarmRefused, command_record, event_record, read_command
from evaluator.wire.alarms.state import (
    AlarmState,
    AlarmStateRefused,
    is_of_alarms,
    is_request,
    request_key,
)
from evaluator.wire.outputs.settled import Watched
from evaluator.wire.records import LeaderOutput, OutputRecord
from evaluator.wire.weights.leader_state import MAX_GENERATIONS

log = structlog.get_logger(__name__)


class LeaderAlarms:
    """Watches settled queries while this process is the leader.

    Args:
        rules: the watched series.
        state: its stored state; it follows the topic `weights` also while another process leads.
    """

    def __init__(self, rules: WatchRules, state: AlarmState) -> None:
        self.rules = rules
        self._state = state
        self._requests: dict[bytes, bytes] = {}
        self._unpublished: list[tuple[LeaderOutput, OutputRecord]] = []
        self.watch: AlarmWatch | None = None
        self.positions: dict[int, int] = {}
        """Offset in `settled` of the first record of each task that was not received yet."""

    def keep(self, key: bytes, value: bytes) -> bool:
        """Takes a record of `weights` if it is one of alarms."""
        if is_of_alarms(key):
            self._state.keep(key, value)
        elif is_request(key):
            self._requests.pop(key, None)
            if value:
                self._requests[key] = value
        else:
            return False
        return True

    def begin(self, n_tasks: int) -> None:
        """Begins the watch as the leader; it has to receive all records from `positions` on.

        A state of other settings, or one that cannot be read, is deleted.
        """
        state, watch = self._state, AlarmWatch(self.rules, n_tasks=n_tasks)
        state.forget_written()
        try:
            reason = state.load(watch)
        except AlarmStateRefused as error:
            reason, watch = str(error), AlarmWatch(self.rules, n_tasks=n_tasks)
            state.forget_written()
        self._unpublished = []
        if reason:
            log.warning("alarms_begin_again", reason=reason)
        if reason and not watch.series:
            self._unpublished = [("alarms", record) for record in state.event_deletions()]
            self._unpublished += [("weights", record) for record in state.deletions()]
        self.watch, self.positions = watch, dict(state.positions)

    def resign(self) -> None:
        """Ends the watch: this process is no longer the leader."""
        self.watch = None

    def needs(self, task: int, generation: str, offset: int) -> bool:
        """Whether records of a task up to this offset are to be received."""
        known = self._state.generations.get(task, [generation])
        is_left = generation in known[:-1]
        return not is_left and offset >= self.positions.get(task, 0)

    def receive(
        self, task: int, generation: str, records: Sequence[Watched]
    ) -> list[tuple[LeaderOutput, OutputRecord]]:
        """Adds records of a task; returns the records to publish, if ticks were closed.

        Records that were received before are ignored: learning may have to read them again.
        """
        watch = self.watch
        if watch is None:
            return []
        for key in list(self._requests):
            self._request(key, watch)
        begin = self.positions.get(task, 0)
        batch = [record for each in records for record in _from(each, begin)]
        if not batch:
            return []
        self.positions[task] = _last_offset(records[-1]) + 1
        result, known = WatchResult(), self._state.generations.setdefault(task, [generation])
        if generation not in known:
            log.warning("alarms_generation_begins", task=task, generation=generation)
            watch.begin_again(task)
            known = self._state.generations[task] = [*known, generation][-MAX_GENERATIONS:]
        if generation == known[-1]:
            watch.receive(task, batch, result)
        if not result.n_ticks:
            return []
        for event in result.events:
            labels = event.series._asdict()
            log.info("alarm_changed", event_name=event.name, time_ms=event.time_ms, **labels)
        published, self._unpublished = self._unpublished, []
        published += [("alarms", event_record(event)) for event in result.events]
        for command in result.commands:
            published.append(("alarm-commands", command_record(command)))
            published.append(("weights", OutputRecord(request_key(command.id), b"")))
        state = self._state.written(watch)
        return [*published, *(("weights", record) for record in state)]

    def _request(self, key: bytes, watch: AlarmWatch) -> None:
        try:
            watch.command(read_command(self._requests[key])._replace(applied_ms=0))
        except AlarmRefused as error:
            del self._requests[key]
            log.warning("command_unreadable", model="", error=str(error))

    def view(self) -> AlarmsView:
        """All series, while this process leads."""
        return AlarmsView() if self.watch is None else self.watch.view()


def _last_offset(record: Watched) -> int:
    return int(record.offsets[-1]) if isinstance(record, WatchedQueries) else record[0]


def _from(record: Watched, offset: int) -> list[WatchedQueries | WatermarkRecord]:
    """The part of a record from an offset on."""
    if isinstance(record, WatchedQueries):
        left = record.rows(slice(int(np.searchsorted(record.offsets, offset)), None))
        return [left] if len(left.ns) else []
    return [record[1]] if record[0] >= offset else []
