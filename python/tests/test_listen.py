"""Members that find one another at the root: processes, threads and tasks, and those who do not come."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

import treecast.aio
from treecast import GroupEnded, Node, TreecastError, read_members

# Longer than any operation here takes, so that a missing message fails a test and does not hang it.
PATIENCE = 30


@pytest.fixture
def place():
    """An address without a listener."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return f"127.0.0.1:{taken.getsockname()[1]}"


class Thread(threading.Thread):
    """A call in a thread, and what comes of it."""

    def __init__(self, call):
        super().__init__(daemon=True)
        self._call = call
        self.start()

    def run(self):
        try:
            self._value, self._error = self._call(), None
        except Exception as error:
            self._error = error

    def result(self):
        self.join(PATIENCE)
        if self._error is not None:
            raise self._error
        return self._value


def process(script, place):
    """A process that runs a script with that address."""
    environment = {**os.environ, "TOKEN": "secret", "PLACE": place}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", script], env=environment, **pipes)


def finished(started):
    """What it has printed, once it is over."""
    out, err = started.communicate(timeout=PATIENCE)
    assert started.returncode == 0, err
    return out


JOIN = """
import os, treecast
with treecast.Node() as node, node.join(os.environ["PLACE"], os.environ["TOKEN"]) as group:
    print(group.member, list(group))
"""
JOIN_ASYNC = """
import asyncio, os
from treecast.aio import Node
async def main():
    async with Node() as node:
        async with await node.join(os.environ["PLACE"], os.environ["TOKEN"], member=3) as group:
            print(group.member, [message async for message in group])
asyncio.run(main())
"""


def test_processes_join_and_receive(place):
    started = [process(script, place) for script in (JOIN, JOIN, JOIN_ASYNC)]
    with Node() as node, node.listen(place, 4, token="secret", root=1, slots=64) as group:
        assert group.member == 1
        for message in (b"hello", b"", bytes(5)):
            group.send(message)
        assert group.close(PATIENCE) == []
    received = str([b"hello", b"", bytes(5)])
    assert sorted(finished(one) for one in started) == [f"{member} {received}\n" for member in (0, 2, 3)]


def test_a_timeout_names_joined_and_missing_members(place):
    other = Thread(lambda: Node().join(place, timeout=PATIENCE, member=2))
    missing = (
        r"2 of 4 members have joined: .* \(the root\) at .* as member 0, .* as member 2; members 1, 3 are missing$"
    )
    with pytest.raises(TimeoutError, match=rf"^not all members joined in time: {missing}"):
        # The member joins at some time before the timeout.
        Node().listen(place, 4, timeout=2)
    with pytest.raises(TimeoutError, match=f"^cannot join the group at {place}: not all .*: {missing}"):
        other.result()


def test_a_missing_root_is_named(place):
    with pytest.raises(TimeoutError, match=f"^cannot join the group at {place}: Connection refused"):
        Node().join(place, timeout=0.05)


def test_a_rejected_member_gets_the_reason(place):
    root = Thread(lambda: Node().listen(place, 2, token="secret", timeout=PATIENCE))
    away = f"^cannot join the group at {place}: rejected: "
    with pytest.raises(TreecastError, match=f"{away}token mismatch$"):
        Node().join(place, "guess")
    with pytest.raises(TreecastError, match=f"{away}member 0 is the root$"):
        Node().join(place, "secret", 0)
    with Node() as node:
        group = node.join(place, token="secret")
        root.result().send(b"hello")
        assert group.receive(PATIENCE) == b"hello"


def test_invalid_arguments_are_rejected(place):
    node = Node()
    taken = socket.create_server(("127.0.0.1", 0))
    at = f"127.0.0.1:{taken.getsockname()[1]}"
    with taken, pytest.raises(OSError, match=f"^.*cannot listen at {at}: Address already in use"):
        node.listen(at, 2)
    for arguments, settings, sentence in [
        ((place, 0), {}, "a group has from 1 to 4096 members, and not 0"),
        ((place, -1), {}, "invalid value -1: expected a whole number from 0 to 4294967295"),
        ((place, 2), {"root": 2}, "the root is member 2 of 2: members are numbered from 0"),
        ((place, 2), {"slots": 5}, "invalid value slots=5: expected auto, or a power of two from 4 to 65536"),
        ((place, 2), {"timeout": -1}, "invalid value -1 for timeout: expected a number of seconds from 0, or None"),
        (("a b", 2), {}, "a b is no address such as 192.0.2.1:7000 or name:7000"),
    ]:
        with pytest.raises(TreecastError) as refused:
            node.listen(*arguments, **settings)
        assert str(refused.value) == sentence
    with pytest.raises(TypeError, match="^unknown setting members_max of a group"):
        node.listen(place, 2, members_max=4)
    with pytest.raises(TreecastError, match=r"has IPv4 only, and the root is at \[::1\]:7000$"):
        node.join("[::1]:7000")
    node.close()
    for call in (lambda: node.listen(place, 2), lambda: node.join(place)):
        with pytest.raises(TreecastError, match="^the node has been closed$"):
            call()


@pytest.mark.parametrize("call", ["listen(place, 2, timeout=None)", "join(place, timeout=None)", "join(silent)"])
def test_ctrl_c_interrupts(place, call):
    script = f"""
import os, socket, treecast
place = os.environ["PLACE"]
listener = socket.create_server(("127.0.0.1", 0))
silent = f"127.0.0.1:{{listener.getsockname()[1]}}"
node = treecast.Node()
try:
    print("waits", flush=True)
    node.{call}
except KeyboardInterrupt:
    print("interrupted")
"""
    started = process(script, place)
    assert started.stdout.readline() == "waits\n"
    # It is most likely waiting by then.
    time.sleep(0.2)
    started.send_signal(signal.SIGINT)
    assert finished(started) == "interrupted\n"


def test_other_threads_run_while_one_listens_and_closing_the_node_ends_it(place):
    for call in (lambda node: node.listen(place, 2, timeout=None), lambda node: node.join(place, timeout=None)):
        node = Node()
        waiting = Thread(lambda node=node, call=call: call(node))
        time.sleep(0.1)
        assert waiting.is_alive()
        node.close()
        with pytest.raises(TreecastError, match="^the node has been closed$"):
            waiting.result()


def test_members_know_the_scheme_of_the_root(place):
    with Node("127.0.0.1:0") as one, Node("127.0.0.1:0") as other:
        members = [one.address, other.address]
        for number, given, used in [
            (1, {"message_bytes": 64}, "postal:lambda=8"),
            (2, {"message_bytes": 1 << 20}, "serial"),
            (3, {"scheme": "k-binomial:k=2"}, "k-binomial:k=2"),
        ]:
            groups = [node.group(members, group=number, **given) for node in (one, other)]
            assert [group.scheme for group in groups] == [used] * 2
        joined = other.join_running([one.address], group=4)
        assert joined.scheme is None
    others = [Thread(lambda: Node().join(place, timeout=PATIENCE)) for _ in range(2)]
    group = Node().listen(place, 3, scheme="postal")
    assert group.scheme.startswith("postal:lambda=")
    assert [other.result().scheme for other in others] == [None, None]


def test_members_are_read_from_a_file(tmp_path):
    path = tmp_path / "members"
    path.write_text("# ours\n127.0.0.1:7000  # the root\n\n127.0.0.2\n[::1]:9\n")
    assert read_members(path) == read_members(str(path)) == ["127.0.0.1:7000", "127.0.0.2:7700", "[::1]:9"]
    path.write_text("127.0.0.1\n127.0.0.1:7700\n")
    with pytest.raises(TreecastError) as wrong:
        read_members(path)
    assert str(wrong.value) == f"{path}, line 2: 127.0.0.1:7700 is given twice, before in line 1"
    with pytest.raises(FileNotFoundError):
        read_members(tmp_path / "nowhere")
    path.write_bytes(b"\xff")
    with pytest.raises(TreecastError, match="could not be read: it is not valid UTF-8$"):
        read_members(path)
    with pytest.raises(TypeError):
        read_members(7)


def asynchronous(main):
    asyncio.run(asyncio.wait_for(main, PATIENCE))


def test_many_tasks_of_one_loop_join(place):
    async def join(number):
        async with treecast.aio.Node() as node, await node.join(place, "secret", number) as group:
            assert group.member == number
            return [message async for message in group]

    async def main():
        # More than the default executor has threads.
        others = [asyncio.create_task(join(number)) for number in range(1, 41)]
        async with treecast.aio.Node() as node, await node.listen(place, 41, token="secret") as group:
            assert group.scheme.startswith("postal:lambda=")
            await group.send(b"hello")
        assert await asyncio.gather(*others) == [[b"hello"]] * 40

    asynchronous(main())


def test_cancelling_a_task_ends_its_call(place):
    async def main():
        async with treecast.aio.Node() as one, treecast.aio.Node() as other, treecast.aio.Node() as root:
            before = threading.active_count()
            joining = asyncio.create_task(one.join(place, timeout=None))
            listening = asyncio.create_task(root.listen(place, 3))
            # It has most likely joined by then.
            await asyncio.sleep(0.3)
            joining.cancel()
            with pytest.raises(asyncio.CancelledError):
                await joining
            # Its number is free again: two others complete the group.
            pair = [asyncio.create_task(node.join(place)) for node in (one, other)]
            groups = await asyncio.gather(listening, *pair)
            await groups[0].send(b"hello")
            assert [await group.receive() for group in groups[1:]] == [b"hello"] * 2

            waiting = asyncio.create_task(other.join(place))
            while not waiting.done():
                listening = asyncio.create_task(root.listen(place, 3, group=2))
                await asyncio.sleep(0.1)
                listening.cancel()
                await asyncio.wait([listening])
            # It had joined, or was about to.
            with pytest.raises((TimeoutError, TreecastError), match=": the root cancelled the group$"):
                await waiting
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await root.listen(place, 2, timeout=None, group=3)
            with pytest.raises(TimeoutError, match="^not all members joined in time: 1 of 2 members have joined"):
                await root.listen(place, 2, timeout=0.05, group=3)
            # No thread remains.
            while threading.active_count() > before:
                await asyncio.sleep(0.01)

    asynchronous(main())


def test_a_group_of_members_that_joined_ends_as_any_other(place):
    other = Thread(lambda: Node().join(place))
    with pytest.raises(ZeroDivisionError), Node().listen(place, 2) as group:
        group.wait_until_ready(PATIENCE)
        raise ZeroDivisionError
    with pytest.raises(GroupEnded, match="^the root aborted the group$"):
        other.result().receive(PATIENCE)
