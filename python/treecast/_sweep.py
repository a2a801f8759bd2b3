"""Sweeps: many runs, on any executor."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import ExitStack
from queue import Empty, SimpleQueue
from typing import Any

from treecast._journal import Journal
from treecast._points import COLUMNS, Point, Row, checked, key_of, run
from treecast._treecast import Stop, Table, TreecastError

# The target duration of a batch of points, and the time after which a batch stops and returns the
# rest of its points.
_BATCH_SECONDS = 0.2
_BATCH_SECONDS_MAX = 1.0
_BATCH_POINTS_MAX = 64
# The most batches in flight, before and after the duration of a point is known.
_FIRST_BATCHES = 64
_BATCHES_MAX = 1024
# The interval at which a sweep that waits checks signals: one that another thread has received does
# not wake it.
_SIGNALS_SECONDS = 0.1
# The most points listed in an error.
_SHOWN = 10

_Done = tuple[list[Row], Exception | None, float]


class SweepError(RuntimeError):
    """An executor failed, for example because a worker of a process pool died: some points are complete, others are lost.

    `done` are the numbers of the completed points, `table` their rows, and `lost` the numbers of those that were
    in flight. A sweep with `resume` continues from there when it is run again.
    """

    def __init__(self, sentence: str, table: Table, done: list[int], lost: list[int]) -> None:
        super().__init__(sentence)
        self.table = table
        self.done = done
        self.lost = lost


def sweep(
    points: Iterable[Mapping[str, Any]],
    executor: Executor | None = None,
    progress: Callable[[int, int], object] | None = None,
    resume: str | os.PathLike[str] | None = None,
) -> Table:
    """Runs many points, and returns one row per point, in their order.

    A point is a dict: a run under load (`LoadPoint`) if it has the key `load`, otherwise one multicast (`MulticastPoint`).
    `grid` makes cross products of them. `executor` is any `concurrent.futures.Executor`: a process pool, a Dask
    cluster's `client.get_executor(retries=2)`, mpi4py's `MPIPoolExecutor`; None means one thread per core of this machine. The rows
    do not depend on it. Short points are sent in batches, and at most 1,024 batches are in flight.

    `progress` is called with the number of completed points and the number of all points: at the beginning, and after each batch.
    `resume` is the path of a journal file, which keeps each completed point: an interrupted sweep resumes from
    it, also if points were added. The file remains when the sweep is complete.

    The table has one column per input and result, with the same type for all sweeps: integers are unsigned 64-bit,
    and values that do not apply to a point are null. Column names contain the units.

    Raises TreecastError or TypeError with the number of an invalid point: for an unknown or missing key before any point
    runs, for other errors when the point is reached. Raises SweepError if the executor fails, and OSError or TreecastError for a file
    that cannot be used.

    >>> table = sweep(grid(fabric="icpp98", scheme=["binomial", "tree-worm"], destinations="random:15", seed=range(3)))
    >>> for row in table:
    ...     print(row["scheme"], row["seed"], row["latency_cycles"])
    binomial 0 17325
    binomial 1 17322
    binomial 2 17322
    tree-worm 0 4350
    tree-worm 1 4350
    tree-worm 2 4350
    """
    listed = checked(points)
    with ExitStack() as stack:
        journal = None if resume is None else stack.enter_context(Journal(resume))
        work = _Sweep(listed, journal, progress)
        if executor is None:
            stop = Stop()
            threads = len(os.sched_getaffinity(0))
            executor = stack.enter_context(ThreadPoolExecutor(threads, initializer=stop.watch_here))
            # After an interrupt or an error the threads need not complete their runs.
            stack.callback(stop.set)
        work.run(executor)
    return work.table()


class _Sweep:
    """The state of a sweep: points that are pending, in flight and complete."""

    def __init__(
        self, points: list[Point], journal: Journal | None, progress: Callable[[int, int], object] | None
    ) -> None:
        self.points = points
        self.journal = journal
        self.progress = progress
        self.keys = [] if journal is None else [key_of(point) for point in points]
        self.rows = dict[int, Row]()
        if journal is not None:
            self.rows = {number: journal.rows[key] for number, key in enumerate(self.keys) if key in journal.rows}
        self.pending = deque(number for number in range(len(points)) if number not in self.rows)
        self.in_flight = dict[Future[_Done], list[int]]()
        self.finished = SimpleQueue[Future[_Done]]()
        self.point_seconds: float | None = None

    def run(self, executor: Executor) -> None:
        """Runs the pending points."""
        self._tell()
        try:
            while self.pending or self.in_flight:
                try:
                    self._submit(executor)
                    future = self._next_finished()
                    done = future.result()
                except Exception as error:
                    raise self._broken(error) from error
                self._take(self.in_flight.pop(future), done)
        finally:
            for future in self.in_flight:
                future.cancel()

    def _next_finished(self) -> Future[_Done]:
        while True:
            try:
                return self.finished.get(timeout=_SIGNALS_SECONDS)
            except Empty:
                pass

    def table(self) -> Table:
        """The rows of the completed points, in the order of the points."""
        return Table._of(COLUMNS, [self.rows[number] for number in sorted(self.rows)])

    def _submit(self, executor: Executor) -> None:
        size, batches_max = 1, _FIRST_BATCHES
        if self.point_seconds is not None:
            fitting = int(_BATCH_SECONDS / max(self.point_seconds, 1e-6))
            size, batches_max = min(max(fitting, 1), _BATCH_POINTS_MAX), _BATCHES_MAX
        while self.pending and len(self.in_flight) < batches_max:
            numbers = [self.pending.popleft() for _ in range(min(size, len(self.pending)))]
            try:
                future = executor.submit(_work, [self.points[number] for number in numbers])
            except BaseException:
                self.pending.extendleft(reversed(numbers))
                raise
            self.in_flight[future] = numbers
            future.add_done_callback(self.finished.put)

    def _take(self, numbers: Sequence[int], done: _Done) -> None:
        """Stores the rows of a batch; its remaining points are pending again."""
        rows, wrong, seconds = done
        new = dict(zip(numbers, rows, strict=False))
        self.rows.update(new)
        if self.journal is not None:
            self.journal.add({self.keys[number]: row for number, row in new.items()})
        self._tell()
        if wrong is not None:
            raise type(wrong)(f"point {numbers[len(rows)]}: {wrong}")
        self.pending.extendleft(reversed(numbers[len(rows) :]))
        self.point_seconds = seconds / len(rows)

    def _tell(self) -> None:
        if self.progress is not None:
            self.progress(len(self.rows), len(self.points))

    def _broken(self, reason: Exception) -> SweepError:
        """The error with the completed and the lost points; stores batches that have completed meanwhile first."""
        for future, numbers in list(self.in_flight.items()):
            if future.done() and not future.cancelled() and future.exception() is None:
                self._take(numbers, future.result())
                del self.in_flight[future]
        lost = sorted(number for numbers in self.in_flight.values() for number in numbers)
        shown = ", ".join(map(str, lost[:_SHOWN])) + (", ..." if len(lost) > _SHOWN else "")
        sentence = (
            f"the executor failed ({type(reason).__name__}: {reason}): {len(self.rows)} of {len(self.points)} points are "
            f"done, {len(lost)} were in flight and are lost"
        )
        sentence += f": {shown}" if lost else ""
        sentence += "; with resume a sweep can be continued" if self.journal is None else "; run it again to continue"
        return SweepError(sentence, self.table(), sorted(self.rows), lost)


def _work(points: list[Point]) -> _Done:
    """Runs points one after the other. Returns the rows of those completed, the error of the next one, and the duration."""
    started_at = time.monotonic()
    rows: list[Row] = []
    for point in points:
        try:
            rows.append(run(point))
        except (TreecastError, TypeError) as wrong:
            return rows, wrong, time.monotonic() - started_at
        if time.monotonic() - started_at > _BATCH_SECONDS_MAX:
            break
    return rows, None, time.monotonic() - started_at
