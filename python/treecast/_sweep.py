"""Sweeps: many runs, on any executor."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import ExitStack
from queue import SimpleQueue
from typing import Any

from treecast._journal import Journal
from treecast._points import COLUMNS, Point, Row, checked, key_of, run
from treecast._treecast import Table, TreecastError

# How long a batch of points should take, and when one that takes longer hands back what is left of it.
_BATCH_SECONDS = 0.2
_BATCH_SECONDS_MAX = 1.0
_BATCH_POINTS_MAX = 64
# The most batches under way, before and after one has told how long points take.
_FIRST_BATCHES = 64
_BATCHES_MAX = 1024
# The most points that an error names.
_SHOWN = 10

_Done = tuple[list[Row], Exception | None, float]


class SweepError(RuntimeError):
    """An executor failed, as when a worker of a process pool dies: some points are done, others are lost.

    `done` are the numbers of the points that are done, `table` their rows, and `lost` the numbers of those that were
    under way. A sweep with `resume` goes on from there when it is run again.
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
    """Runs many points, and gives a row for each, in their order.

    A point is a dict: of a run under load (`LoadPoint`) if it has a `load`, else of one multicast (`MulticastPoint`).
    `grid` makes cross products of them. `executor` is any `concurrent.futures.Executor`: a process pool, a Dask
    cluster's `client.get_executor(retries=2)`, mpi4py's `MPIPoolExecutor`. None is a thread a core here. The rows are the
    same whatever the executor. Points that take little time travel in batches, and at most 1,024 batches are under way.

    `progress` is called with the number of points that are done and that of all: at the beginning, and whenever some are
    done. `resume` is the path of a file where each point that is done is kept: a sweep that was interrupted goes on from
    there, also if points were added. The file stays when all is done.

    The table has a column for each input and each figure, of one type for all sweeps: whole numbers are unsigned 64-bit
    numbers, and what does not apply to a point is null. Names say the units.

    Raises TreecastError or TypeError with the number of a point that is not possible: one with a wrong key before any
    runs, others when they are reached. Raises SweepError if the executor fails, and OSError or TreecastError for a file
    that cannot be used.

    >>> table = sweep(grid(fabric="icpp98", scheme=["binomial", "tree-worm"], destinations="random:15", seed=range(3)))
    >>> for row in table:
    ...     print(row["scheme"], row["seed"], row["latency_cycles"])
    binomial 0 17325
    binomial 1 17319
    binomial 2 17319
    tree-worm 0 4350
    tree-worm 1 4350
    tree-worm 2 4350
    """
    listed = checked(points)
    with ExitStack() as stack:
        journal = None if resume is None else stack.enter_context(Journal(resume))
        work = _Sweep(listed, journal, progress)
        if executor is None:
            executor = stack.enter_context(ThreadPoolExecutor(len(os.sched_getaffinity(0))))
        work.run(executor)
    return work.table()


class _Sweep:
    """What is left, under way and done of a sweep."""

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
        self.left = deque(number for number in range(len(points)) if number not in self.rows)
        self.under_way = dict[Future[_Done], list[int]]()
        self.finished = SimpleQueue[Future[_Done]]()
        self.point_seconds: float | None = None

    def run(self, executor: Executor) -> None:
        """Runs what is left."""
        self._tell()
        try:
            while self.left or self.under_way:
                try:
                    self._hand_out(executor)
                    future = self.finished.get()
                    done = future.result()
                except Exception as error:
                    raise self._broken(error) from error
                self._take(self.under_way.pop(future), done)
        finally:
            for future in self.under_way:
                future.cancel()

    def table(self) -> Table:
        """The rows that are done, in the order of their points."""
        return Table._of(COLUMNS, [self.rows[number] for number in sorted(self.rows)])

    def _hand_out(self, executor: Executor) -> None:
        size, batches_max = 1, _FIRST_BATCHES
        if self.point_seconds is not None:
            fitting = int(_BATCH_SECONDS / max(self.point_seconds, 1e-6))
            size, batches_max = min(max(fitting, 1), _BATCH_POINTS_MAX), _BATCHES_MAX
        while self.left and len(self.under_way) < batches_max:
            numbers = [self.left.popleft() for _ in range(min(size, len(self.left)))]
            try:
                future = executor.submit(_work, [self.points[number] for number in numbers])
            except BaseException:
                self.left.extendleft(reversed(numbers))
                raise
            self.under_way[future] = numbers
            future.add_done_callback(self.finished.put)

    def _take(self, numbers: Sequence[int], done: _Done) -> None:
        """Keeps the rows of a batch; what it has not come to is left again."""
        rows, wrong, seconds = done
        new = dict(zip(numbers, rows, strict=False))
        self.rows.update(new)
        if self.journal is not None:
            self.journal.add({self.keys[number]: row for number, row in new.items()})
        self._tell()
        if wrong is not None:
            raise type(wrong)(f"point {numbers[len(rows)]}: {wrong}")
        self.left.extendleft(reversed(numbers[len(rows) :]))
        self.point_seconds = seconds / len(rows)

    def _tell(self) -> None:
        if self.progress is not None:
            self.progress(len(self.rows), len(self.points))

    def _broken(self, reason: Exception) -> SweepError:
        """The error that says what is done, once what has come meanwhile is kept, and what is lost."""
        for future, numbers in list(self.under_way.items()):
            if future.done() and not future.cancelled() and future.exception() is None:
                self._take(numbers, future.result())
                del self.under_way[future]
        lost = sorted(number for numbers in self.under_way.values() for number in numbers)
        shown = ", ".join(map(str, lost[:_SHOWN])) + (", ..." if len(lost) > _SHOWN else "")
        sentence = (
            f"the executor failed ({type(reason).__name__}: {reason}): {len(self.rows)} of {len(self.points)} points are "
            f"done, {len(lost)} were under way and are lost"
        )
        sentence += f": {shown}" if lost else ""
        sentence += (
            "; with resume a sweep goes on from what is done" if self.journal is None else "; run it again to go on"
        )
        return SweepError(sentence, self.table(), sorted(self.rows), lost)


def _work(points: list[Point]) -> _Done:
    """Runs points one after the other: the rows of those it came to, why the next is not possible, and how long it took."""
    begun = time.monotonic()
    rows: list[Row] = []
    for point in points:
        try:
            rows.append(run(point))
        except (TreecastError, TypeError) as wrong:
            return rows, wrong, time.monotonic() - begun
        if time.monotonic() - begun > _BATCH_SECONDS_MAX:
            break
    return rows, None, time.monotonic() - begun
