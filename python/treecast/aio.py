"""Nodes and groups for asyncio: what `treecast.Node` and `treecast.NodeGroup` do, without blocking the event loop.

>>> import asyncio
>>> from treecast.aio import Node
>>> async def main():
...     async with Node("127.0.0.1:0") as one, Node("127.0.0.1:0") as other:
...         members = [one.address, other.address]
...         receiver = other.group(members)
...         async with one.group(members) as sender:
...             await sender.send(b"hello")
...         async for message in receiver:
...             print(message)
>>> asyncio.run(main())
b'hello'

Any number of groups wait in one event loop, without threads; only `listen` and `join` use one thread each while they wait.
`asyncio.timeout` bounds every call, and a cancelled task loses no message.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

import treecast

if TYPE_CHECKING:
    from typing import Unpack

    from typing_extensions import Buffer

__all__ = ["Node", "NodeGroup"]

_T = TypeVar("_T")
_Values = TypeVar("_Values", int, float, "Buffer")


class Node:
    """A running node within this process, as `treecast.Node`.

    As an asynchronous context manager it is closed at the end.
    """

    def __init__(
        self,
        bind: str = "0.0.0.0:0",
        *,
        engine: str = "auto",
        socket: str | os.PathLike[str] | None = None,
        share: str | None = None,
        ports: str = "any",
        buffer_bytes: int = 4194304,
        spin_us: int | None = 0,
        status: bool = True,
        peer_timeout_ms: int = 800,
        join_timeout_ms: int = 10000,
    ) -> None:
        self._node = treecast.Node(
            bind,
            engine=engine,
            socket=socket,
            share=share,
            ports=ports,
            buffer_bytes=buffer_bytes,
            spin_us=spin_us,
            status=status,
            peer_timeout_ms=peer_timeout_ms,
            join_timeout_ms=join_timeout_ms,
        )

    @property
    def address(self) -> str:
        """The UDP address of the node, as it appears in member lists."""
        return self._node.address

    @property
    def strays(self) -> dict[str, int] | None:
        """The numbers of datagrams that were dropped because they belong to no group of this node, by reason.

        None once the process that has the node has ended.
        """
        return self._node.strays

    async def listen(
        self, listen: str, members: int, *, timeout: float | None = 60.0, **settings: Unpack[treecast.GroupSettings]
    ) -> NodeGroup:
        """Listens until all members have joined, and takes part in their group as its root, as `treecast.Node.listen`.

        It has a timeout of its own, since the error names the missing members. If it is cancelled, the members that have joined
        get an error.
        """
        return NodeGroup(await _in_thread(partial(self._node._listen, listen, members, timeout, settings)))

    async def join(
        self,
        root: str,
        token: str = "",
        member: int | None = None,
        timeout: float | None = 60.0,
        insecure: bool = False,
    ) -> NodeGroup:
        """Joins the group of a root that listens, as `treecast.Node.join`.

        If it is cancelled, another member can join in its place.
        """
        return NodeGroup(await _in_thread(partial(self._node._join, root, token, member, timeout, insecure)))

    def group(self, members: Sequence[str], **settings: Unpack[treecast.GroupSettings]) -> NodeGroup:
        """Creates a group from a list of members, as `treecast.Node.group`. It does not wait, unless the root measures the network for
        the scheme `postal`: that blocks the event loop, which `listen` does not.
        """
        return NodeGroup(self._node.group(members, **settings))

    def join_running(self, members: Sequence[str], **settings: Unpack[treecast.GroupSettings]) -> NodeGroup:
        """Asks the root of a running group to admit this node, as `treecast.Node.join_running`. It does not wait."""
        return NodeGroup(self._node.join_running(members, **settings))

    async def close(self) -> None:
        """Closes the node. Open groups are aborted."""
        # It takes some seconds at most.
        await asyncio.to_thread(self._node.close)

    async def __aenter__(self) -> Node:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return repr(self._node)


async def _in_thread(call: Callable[[Callable[[], None]], _T]) -> _T:
    """Runs a call in a new thread. The call's argument is a function that it calls periodically, and that raises an exception once this
    coroutine is cancelled.
    """
    is_cancelled = threading.Event()

    def check() -> None:
        if is_cancelled.is_set():
            raise InterruptedError

    # Not in the default executor: its threads are few, and all members that this call waits for may
    # join in the same loop.
    thread = ThreadPoolExecutor(1, thread_name_prefix="treecast")
    running = asyncio.get_running_loop().run_in_executor(thread, call, check)
    thread.shutdown(wait=False)
    try:
        await asyncio.wait([running])
    except asyncio.CancelledError:
        is_cancelled.set()
        # Retrieve the exception, so that asyncio does not log it.
        running.add_done_callback(asyncio.Future.exception)
        await asyncio.wait([running])
        raise
    return running.result()


class NodeGroup:
    """A group at one of its members, as `treecast.NodeGroup`, within one event loop at a time.

    At the end of an `async with` block it is closed; after an exception it is aborted. `async for` receives until the root
    closes the group. Methods raise the same exceptions as those of `treecast.NodeGroup`.
    """

    def __init__(self, group: treecast.NodeGroup) -> None:
        self._group = group
        # From now on each change of the group's state makes it readable.
        self._descriptor = group.fileno()
        self._waiting: set[asyncio.Future[None]] = set()
        self._sending = asyncio.Lock()
        self._is_aborted = False

    async def send(self, message: Buffer) -> None:
        """At the root: sends a message to all other members. It returns when the message is at all members or in the group's slots.

        If it is cancelled before the first byte is sent, the message is not sent; otherwise the next call that sends, flushes or
        closes sends the rest, and uses the buffer until then.
        """
        async with self._sending:
            await self._until(partial(self._group._begin, message))
            await self._until(self._group._finish)

    async def receive(self) -> bytes | None:
        """Receives the next message; returns None if the root has closed the group and all messages have been received.

        If it is cancelled, the next call receives that message.
        """
        return await self._until(partial(self._group.receive, 0))

    async def flush(self) -> None:
        """At the root: waits until every member that is not lost has all messages sent so far."""
        await self._until(partial(self._group.flush, 0))

    async def barrier(self) -> int:
        """Waits until all members are in this call, which each makes after the same message. Returns the number of processes that
        were: see `treecast.NodeGroup.barrier`."""
        return await self._until(partial(self._group.barrier, 0))

    async def all_reduce(self, values: _Values, operation: str = "sum") -> _Values:
        """Combines the values of all members, and returns the result: see `treecast.NodeGroup.all_reduce`.

        If it is cancelled, the same call can be made again.
        """
        return await self._until(partial(self._group.all_reduce, values, operation, 0))

    async def wait_until_ready(self) -> list[treecast.Lost]:
        """At the root: waits until every member has its position in the tree or is lost, and returns the lost members. At another
        member: waits until it has its position.
        """
        return await self._until(partial(self._group.wait_until_ready, 0))

    async def close(self) -> list[treecast.Lost]:
        """At the root: waits until every member has all messages, closes the group, and returns the members that have been lost or
        have left. At another member: leaves the group.

        If it is cancelled, the group continues to close in the background.
        """
        return await self._until(partial(self._group.close, 0))

    def abort(self) -> None:
        """Aborts the group without waiting."""
        self._is_aborted = True
        self._group.abort()

    @property
    def losses(self) -> list[treecast.Lost]:
        """The members that have been lost or have left so far, as known to the root."""
        return self._group.losses

    @property
    def member(self) -> int | None:
        """This member's number, from 0; None until it has its position in the tree."""
        return self._group.member

    @property
    def scheme(self) -> str | None:
        """The scheme of the tree, as `treecast.NodeGroup.scheme`."""
        return self._group.scheme

    @property
    def counters(self) -> dict[str, int] | None:
        """The counters of this group at this node, by name.

        None once the node does not have the group any more.
        """
        return self._group.counters

    def __aiter__(self) -> NodeGroup:
        return self

    async def __anext__(self) -> bytes:
        message = await self.receive()
        if message is None:
            raise StopAsyncIteration
        return message

    async def __aenter__(self) -> NodeGroup:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None:
            self.abort()
        elif not self._is_aborted:
            await self.close()

    def __repr__(self) -> str:
        return repr(self._group)

    async def _until(self, attempt: Callable[[], _T]) -> _T:
        """Attempts a call now, and again after each change of the group's state."""
        # Other tasks run even if every attempt succeeds at once.
        await asyncio.sleep(0)
        while True:
            # No other task runs between the attempt and the wait, so no change is missed.
            with contextlib.suppress(TimeoutError):
                return attempt()
            await self._changed()

    async def _changed(self) -> None:
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.add_reader(self._descriptor, self._wake)
        waiting = loop.create_future()
        self._waiting.add(waiting)
        try:
            await waiting
        finally:
            self._waiting.discard(waiting)
            if not self._waiting:
                loop.remove_reader(self._descriptor)

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._descriptor, 8)
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)
