"""Nodes and groups for asyncio."""

import asyncio
import contextlib
import threading

import pytest

from treecast import GroupEnded, TreecastError
from treecast.aio import Node

PATIENCE = 30


def asynchronous(test):
    """Runs a test in a loop, with a function that makes groups of two nodes: the root's, and that of the other member."""

    async def run():
        async with contextlib.AsyncExitStack() as stack:

            async def pair(**settings):
                nodes = [await stack.enter_async_context(Node("127.0.0.1:0")) for _ in range(2)]
                members = [node.address for node in nodes]
                return [node.group(members, **settings) for node in nodes]

            async with asyncio.timeout(PATIENCE):
                await test(pair)

    def run_test():
        asyncio.run(run())

    run_test.__name__ = test.__name__
    return run_test


@asynchronous
async def test_messages_come_in_order_until_the_root_closes(pair):
    root, member = await pair()
    messages = [b"", b"hello", bytes(3_000_000), b"last"]

    async def send():
        async with root:
            for message in messages:
                await root.send(message)

    sending = asyncio.create_task(send())
    assert [message async for message in member] == messages
    await sending
    assert await member.receive() is None


@asynchronous
async def test_a_receive_that_is_cancelled_loses_no_message(pair):
    root, member = await pair(slots=16)
    message = bytes(range(250)) * 4_000
    received = []

    async def receive():
        while (message := await member.receive()) is not None:
            received.append(message)

    async def send():
        for _ in range(3):
            await root.send(message)
        await root.close()

    sending = asyncio.create_task(send())
    cancelled = 0
    while len(received) < 3:
        receiving = asyncio.create_task(receive())
        for _ in range(3):
            await asyncio.sleep(0)
        cancelled += receiving.cancel()
        await asyncio.wait([receiving])
    await sending
    assert received == [message] * 3 and cancelled > 3


@asynchronous
async def test_a_cancelled_send_sends_all_or_nothing(pair):
    root, member = await pair(slots=4)
    sending = asyncio.create_task(root.send(bytes(100_000)))
    waits = asyncio.create_task(root.send(b"waits for its turn"))
    while root.counters["sent"] < 4:
        await asyncio.sleep(0)
    for task in (sending, waits):
        task.cancel()
    await asyncio.wait([sending, waits])
    receiving = asyncio.create_task(member.receive())
    await root.send(b"next")
    assert [await receiving, await member.receive()] == [bytes(100_000), b"next"]


@asynchronous
async def test_the_loop_goes_on_while_a_message_is_sent_and_received(pair):
    root, member = await pair()
    message = bytes(30_000_000)
    tasks = [asyncio.create_task(root.send(message)), asyncio.create_task(member.receive())]
    turns = 0
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0)
        turns += 1
    assert tasks[1].result() == message
    assert turns > 10


@asynchronous
async def test_other_tasks_run_while_messages_are_available(pair):
    root, member = await pair()
    for _ in range(100):
        await root.send(b"x")
    await root.close()
    turns = 0

    async def count():
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    counting = asyncio.create_task(count())
    assert len([message async for message in member]) == 100
    counting.cancel()
    assert turns > 50


@asynchronous
async def test_many_groups_wait_on_one_loop_without_threads(pair):
    async with Node("127.0.0.1:0") as one, Node("127.0.0.1:0") as other:
        members = [one.address, other.address]
        before = threading.active_count()
        roots = [one.group(members, group=number) for number in range(50)]
        receiving = [asyncio.create_task(other.group(members, group=number).receive()) for number in range(50)]
        await asyncio.sleep(0)
        assert threading.active_count() == before
        for number, root in enumerate(roots):
            await root.send(b"%d" % number)
        assert await asyncio.gather(*receiving) == [b"%d" % number for number in range(50)]


@asynchronous
async def test_flush_and_close_wait_for_a_slow_reader_and_can_be_cancelled(pair):
    root, member = await pair(slots=4)
    for _ in range(6):
        await root.send(b"x")
    for wait in (root.flush, root.close):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await wait()
    closing = asyncio.create_task(root.close())
    assert [message async for message in member] == [b"x"] * 6
    assert await closing == []


@asynchronous
async def test_waiting_tasks_raise_when_the_group_ends(pair):
    root, member = await pair()
    await root.wait_until_ready()
    receiving = asyncio.create_task(member.receive())
    with pytest.raises(ZeroDivisionError):
        async with root:
            raise ZeroDivisionError
    with pytest.raises(GroupEnded, match="^the root aborted the group$"):
        await receiving
    root, member = await pair()
    await root.wait_until_ready()
    receiving = asyncio.create_task(member.receive())
    await asyncio.sleep(0)
    assert await member.close() == []
    with pytest.raises(GroupEnded, match="^this member has left$"):
        await receiving
    [lost] = await root.close()
    assert (lost.member, lost.reason) == (1, "left the group")
    assert root.losses == [lost]


@asynchronous
async def test_errors_are_those_of_the_blocking_calls(pair):
    root, member = await pair()
    with pytest.raises(TypeError, match="a bytes-like object is required"):
        await root.send("hello")
    await member.wait_until_ready()
    with pytest.raises(TreecastError, match="^member 1 is not the root of group 1, and only the root sends$"):
        await member.send(b"x")
    with pytest.raises(TreecastError, match="^member 0 is the root of group 1, and only other members receive$"):
        await root.receive()
    assert root.member == 0 and root.counters["sent"] == 0
    root.abort()
    async with root:
        pass
