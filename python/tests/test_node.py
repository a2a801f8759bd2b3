"""Nodes and groups, blocking: between processes, and what each call does."""

import array
import contextlib
import gc
import hashlib
import select
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy
import pytest

from treecast import GroupEnded, Node, TreecastError

# Longer than any operation here takes, so that a missing message fails a test and does not hang it.
PATIENCE = 30
ANY = "127.0.0.1:0"

# The prologue of a process of a group: it prints its address, and reads the members.
ENTER = """
import sys, treecast
node = treecast.Node("127.0.0.1:0")
print(node.address, flush=True)
group = node.group(sys.stdin.readline().split())
"""


@contextlib.contextmanager
def processes(*scripts):
    """Processes that run these scripts, which print an address first and read the members then."""
    with contextlib.ExitStack() as stack:
        started = []
        for script in scripts:
            command = [sys.executable, "-c", script]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
            process = stack.enter_context(subprocess.Popen(command, text=True, **pipes))
            stack.callback(process.kill)
            started.append(process)
        yield started, [process.stdout.readline().strip() for process in started]


def tell(process, members):
    process.stdin.write(" ".join(members) + "\n")
    process.stdin.flush()


def finished(process):
    """What it has printed, once it is over."""
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    return out


def test_processes_receive_what_the_root_sends():
    messages = [b"", b"hello", bytes(range(256)) * 20_000, b"\0" * 5_000]
    receive = """
import hashlib
with group:
    for message in group:
        print(hashlib.sha256(message).hexdigest())
"""
    receive_async = """
import asyncio, hashlib, sys
from treecast.aio import Node
async def main():
    async with Node("127.0.0.1:0") as node:
        print(node.address, flush=True)
        async with node.group(sys.stdin.readline().split()) as group:
            async for message in group:
                print(hashlib.sha256(message).hexdigest())
asyncio.run(main())
"""
    with processes(ENTER + receive, ENTER + receive, receive_async) as (started, addresses), Node(ANY) as node:
        members = [node.address, *addresses]
        for process in started:
            tell(process, members)
        with node.group(members) as group:
            for message in messages:
                group.send(message)
            assert group.close(PATIENCE) == []
        expected = [hashlib.sha256(message).hexdigest() for message in messages]
        assert [finished(process).split() for process in started] == [expected] * 3


def test_a_killed_member_is_named_and_the_others_receive_everything():
    sleep = "group.receive(); print('received', flush=True); group.receive()"
    receive = "print(*(len(message) for message in group))"
    with processes(ENTER + sleep, ENTER + receive) as (started, addresses), Node(ANY) as node:
        members = [node.address, *addresses]
        for process in started:
            tell(process, members)
        group = node.group(members)
        group.send(b"x")
        assert started[0].stdout.readline() == "received\n"
        started[0].kill()
        group.send(b"x" * 100_000)
        [lost] = group.close(PATIENCE)
        assert (lost.member, lost.address) == (1, addresses[0])
        assert lost.reason.startswith("silent for")
        assert str(lost) == f"member 1 at {addresses[0]} is lost: {lost.reason}"
        assert group.losses == [lost]
        assert finished(started[1]) == "1 100000\n"


CTRL_C = """
import os, signal, threading, time, treecast
nodes = [treecast.Node("127.0.0.1:0") for _ in range(2)]
members = [node.address for node in nodes]
root, member = [node.group(members, slots=4) for node in nodes]
print(flush=True)
{before}
def interrupt():
    time.sleep(0.1)
    while {not_yet}:
        time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGINT)
try:
    threading.Thread(target=interrupt).start()
    {call}
except KeyboardInterrupt:
    print("interrupted")
receiver = threading.Thread(target=lambda: print([len(message) for message in member]))
receiver.start()
{after}
root.close()
receiver.join()
"""
SEND_SIX = "for _ in range(6): root.send(b'one')"


@pytest.mark.parametrize(
    ("before", "call", "not_yet", "after", "received"),
    [
        ("", "member.receive()", False, "root.send(b'two')", [3]),
        ("", "member.receive_into(bytearray(10))", False, "root.send(b'two')", [3]),
        ("", "next(member)", False, "root.send(b'two')", [3]),
        ("", "root.send(bytes(100_000))", "root.counters['sent'] < 4", "root.send(b'two')", [100_000, 3]),
        (SEND_SIX, "root.flush()", False, "root.flush()", [3] * 6),
        (SEND_SIX, "root.close()", False, "", [3] * 6),
        ("lonely = nodes[0].group(members, group=2)", "lonely.wait_until_ready()", False, "", []),
    ],
)
def test_ctrl_c_interrupts_a_call_that_waits_and_nothing_is_lost(before, call, not_yet, after, received):
    with processes(CTRL_C.format(before=before, call=call, not_yet=not_yet, after=after)) as ([process], _):
        assert finished(process) == f"interrupted\n{received}\n"


def test_groups_are_informed_when_a_process_exits():
    with processes(ENTER + "group.send(b'last words')") as ([process], [address]), Node(ANY) as node:
        members = [address, node.address]
        group = node.group(members)
        tell(process, members)
        with pytest.raises(GroupEnded, match="^the root aborted the group: its node was closed$"):
            while group.receive(PATIENCE) is not None:
                pass


def test_a_forked_process_leaves_the_node_of_its_parent_alone():
    script = """
import gc, os
child = os.fork()
if child == 0:
    for call in (lambda: group.receive(), lambda: node.group([node.address], group=2), lambda: node.close()):
        try:
            call()
        except treecast.TreecastError as error:
            print(error)
    del group, node
    gc.collect()
    with treecast.Node("127.0.0.1:0") as own, own.group([own.address]) as alone:
        alone.send(b"unreceived")
    sys.exit()
os.waitpid(child, 0)
print(os.getpid(), child, group.receive())
"""
    with processes(ENTER + script) as ([process], [address]), Node(ANY) as node:
        members = [node.address, address]
        tell(process, members)
        with node.group(members) as group:
            group.send(b"hello")
            group.close(PATIENCE)
        *errors, last = finished(process).splitlines()
        parent, child, received = last.split()
        sentence = (
            f"this node belongs to process {parent}, and not to {child}, which was forked from it: open a node there"
        )
        assert (errors, received) == ([sentence] * 3, "b'hello'")


@pytest.mark.parametrize(
    "message",
    [
        b"bytes",
        bytearray(b"bytearray"),
        memoryview(b"a memoryview")[2:],
        array.array("d", [1.0, 2.0]),
        numpy.arange(1_000, dtype=numpy.float64).reshape(10, 100),
        numpy.zeros((0, 3)),
        b"",
    ],
)
def test_any_contiguous_buffer_is_sent(pair, message):
    root, member = pair()
    root.send(message)
    assert member.receive(PATIENCE) == memoryview(message).tobytes()


def test_objects_without_a_contiguous_buffer_are_rejected(pair):
    root, member = pair()
    with pytest.raises(TypeError, match="a bytes-like object is required, not 'str'"):
        root.send("hello")
    with pytest.raises(TreecastError, match=r"^the message is not contiguous: pass a copy, such as bytes\(message\)$"):
        root.send(memoryview(b"hello")[::2])
    with pytest.raises(TypeError, match="^the buffer is read-only: it is bytes$"):
        member.receive_into(b"hello")


def test_a_buffer_that_changes_while_it_is_sent_is_still_delivered(pair):
    root, member = pair()
    one, other = bytes(4_000_000), b"x" * 4_000_000
    message = bytearray(one)
    over = threading.Event()

    def write():
        while not over.is_set():
            message[:] = other
            message[:] = one

    writer = threading.Thread(target=write)
    receiver = threading.Thread(target=lambda: [len(message) for message in member])
    # A packet that no member accepts would block the root for ever.
    rescue = threading.Timer(PATIENCE, root.abort)
    for thread in (writer, receiver, rescue):
        thread.start()
    try:
        for _ in range(5):
            root.send(message)
        root.close(PATIENCE)
    finally:
        rescue.cancel()
        over.set()
        writer.join()
    receiver.join()


def test_a_message_is_received_into_a_buffer_if_it_fits(pair):
    root, member = pair()
    root.send(b"hello")
    with pytest.raises(TreecastError, match="^the message has 5 bytes, and the buffer 4$"):
        member.receive_into(bytearray(4), PATIENCE)
    buffer = numpy.zeros(8, dtype=numpy.uint8)
    assert member.receive_into(buffer, PATIENCE) == 5
    assert bytes(buffer) == b"hello\0\0\0"
    root.send(b"")
    assert member.receive_into(bytearray(), PATIENCE) == 0
    root.close(PATIENCE)
    assert member.receive_into(buffer, PATIENCE) is None


def test_a_message_is_read_in_place(pair):
    root, member = pair(transport="stream")
    message = bytes(range(250)) * 1_000
    root.send(message)
    read = b""
    while len(read) < len(message):
        with member.peek(PATIENCE) as peeked, memoryview(peeked) as view:
            assert view.readonly and len(view) == len(peeked) > 0 and peeked.message_bytes == len(message)
            read += view
            assert peeked.is_last == (len(read) == len(message))
    assert read == message
    with pytest.raises(TimeoutError):
        member.peek(0)
    root.send(b"hello")
    peeked = member.peek(PATIENCE)
    array = numpy.frombuffer(peeked, dtype=numpy.uint8)
    for use in (peeked.consume, member.receive, member.peek, member.barrier, member.close):
        with pytest.raises(BufferError, match="^the bytes of a message are in use: "):
            use()
    assert bytes(array) == b"hello"
    del array
    # What was not consumed is received.
    assert member.receive(PATIENCE) == b"hello"
    with pytest.raises(BufferError, match="^these bytes have been received$"):
        memoryview(peeked)
    with pytest.raises(TreecastError, match="^these bytes have been received, "):
        peeked.consume()
    root.send(b"again")
    with pytest.raises(KeyError), member.peek(PATIENCE):
        raise KeyError
    with member.peek(PATIENCE) as peeked:
        assert bytes(peeked) == b"again"
    root.close(PATIENCE)
    assert member.peek(PATIENCE) is None


def test_a_partially_received_message_is_completed_by_the_next_call(pair):
    message = bytes(range(250)) * 4_000
    root, member = pair(slots=16)
    sender = threading.Thread(target=root.send, args=[message])
    sender.start()
    buffer = bytearray(len(message) + 10)
    calls = 0
    while True:
        calls += 1
        with contextlib.suppress(TimeoutError):
            # Alternately, each resumes where the other stopped.
            if calls % 2 == 0:
                received = member.receive(0)
            else:
                received = buffer[: member.receive_into(buffer, 0)]
            break
    sender.join()
    assert received == message and calls > 10


def test_waiting_ends_at_the_timeout(pair):
    root, member = pair(slots=4)
    for timeout in (0, 0.001, 0.1):
        with pytest.raises(TimeoutError, match="^timed out$"):
            member.receive(timeout)
    for _ in range(6):
        root.send(b"x")
    for wait in (root.flush, root.close):
        with pytest.raises(TimeoutError):
            wait(0.01)
    for _ in range(6):
        assert member.receive(PATIENCE) == b"x"
    assert root.close(PATIENCE) == root.close(PATIENCE) == []


@pytest.mark.parametrize(("timeout", "text"), [(-1, "-1"), (float("nan"), "NaN")])
def test_an_invalid_timeout_is_rejected(pair, timeout, text):
    _, member = pair()
    with pytest.raises(
        TreecastError, match=f"^invalid value {text} for timeout: expected a number of seconds from 0, or None$"
    ):
        member.receive(timeout)


def test_a_timeout_may_exceed_the_range_of_the_clock(pair):
    root, member = pair()
    root.send(b"x")
    assert member.receive(1e300) == b"x"
    root.flush(float("inf"))


def test_all_members_get_the_result_of_an_all_reduce(pair):
    root, member = pair()

    def take_part(group, number):
        assert group.barrier(PATIENCE) == 2
        values = array.array("d", [number, -number])
        return [
            group.all_reduce(number + 1, timeout=PATIENCE),
            group.all_reduce(number + 0.5, "max", PATIENCE),
            group.all_reduce(values, "min", PATIENCE) is values and values.tolist(),
        ]

    with ThreadPoolExecutor() as pool:
        results = [pool.submit(take_part, group, number) for number, group in enumerate([root, member])]
    assert [result.result() for result in results] == [[3, 1.5, [0.0, -1.0]]] * 2


@pytest.mark.parametrize(
    ("values", "operation", "text"),
    [
        (1, "mean", "invalid value mean for operation: expected sum, product, min, max, and, or or xor"),
        (1.0, "xor", "8 bytes of f64 cannot be combined by xor"),
        (bytearray(8), "sum", "values of format B cannot be combined"),
        (array.array("d", [0] * 64), "sum", "512 bytes of f64 cannot be combined by sum"),
    ],
)
def test_values_that_cannot_be_combined_are_rejected(pair, values, operation, text):
    root, _ = pair()
    with pytest.raises(TreecastError, match=f"^{text}"):
        root.all_reduce(values, operation)


def test_iteration_ends_when_the_root_closes(pair):
    root, member = pair()
    for number in range(100):
        root.send(b"%d" % number)
    assert root.close(PATIENCE) == []
    assert list(member) == [b"%d" % number for number in range(100)]
    assert member.receive() is None
    with pytest.raises(StopIteration):
        next(member)


def test_a_group_that_is_over_says_so(pair):
    root, member = pair()
    root.close(PATIENCE)
    with pytest.raises(GroupEnded, match="^the group is closed$"):
        root.send(b"late")
    root, member = pair()
    root.wait_until_ready(PATIENCE)
    member.close(PATIENCE)
    with pytest.raises(GroupEnded, match="^this member has left$"):
        member.receive()
    assert [str(lost) for lost in root.close(PATIENCE)][0].endswith("is lost: left the group")


def test_an_exception_in_the_block_aborts_the_group(pair):
    root, member = pair()
    with pytest.raises(ZeroDivisionError), root:
        root.wait_until_ready(PATIENCE)
        raise ZeroDivisionError
    with pytest.raises(GroupEnded, match="^the root aborted the group$"):
        member.receive(PATIENCE)
    with pytest.raises(GroupEnded, match="^the group was aborted at this node$"):
        root.send(b"late")


def test_a_group_aborted_in_its_block_is_not_closed(pair):
    root, _ = pair()
    with root:
        root.abort()


def test_an_unreferenced_group_is_aborted(pair):
    root, member = pair()
    root.wait_until_ready(PATIENCE)
    del root
    gc.collect()
    with pytest.raises(GroupEnded, match="^the root aborted the group: its application ended without closing it$"):
        member.receive(PATIENCE)


def test_one_thread_closes_the_group_that_another_waits_in(pair):
    root, member = pair(slots=4)
    root.wait_until_ready(PATIENCE)
    ended = []

    def wait(call, *arguments):
        try:
            call(*arguments)
        except GroupEnded as error:
            ended.append(str(error))

    waiting = [threading.Thread(target=wait, args=[root.send, bytes(100_000)])]
    waiting[0].start()
    root.abort()
    waiting[0].join()
    assert ended == ["the group was aborted at this node"]
    root, member = pair()
    root.wait_until_ready(PATIENCE)
    waiting = [threading.Thread(target=wait, args=[member.receive]) for _ in range(3)]
    for thread in waiting:
        thread.start()
    member.close(PATIENCE)
    for thread in waiting:
        thread.join()
    assert ended[1:] == ["this member has left"] * 3


def test_threads_share_a_group(pair):
    root, member = pair()
    received = []
    receivers = [threading.Thread(target=lambda: received.extend(member)) for _ in range(2)]
    senders = [
        threading.Thread(target=lambda n=n: [root.send(bytes([n]) * 3_000) for _ in range(50)]) for n in range(4)
    ]
    for thread in receivers + senders:
        thread.start()
    for thread in senders:
        thread.join()
    root.close(PATIENCE)
    for thread in receivers:
        thread.join()
    assert sorted(received) == [bytes([n]) * 3_000 for n in range(4) for _ in range(50)]


def test_other_threads_run_while_one_waits(pair):
    root, member = pair()
    received = []
    waiting = threading.Thread(target=lambda: received.append(member.receive()))
    waiting.start()
    root.send(b"hello")
    waiting.join(PATIENCE)
    assert received == [b"hello"]


def test_the_descriptor_becomes_readable_when_the_state_changes(pair):
    root, member = pair()
    member.wait_until_ready(PATIENCE)
    watched = member.fileno()
    root.send(b"hello")
    received = None
    while received is None:
        assert select.select([watched], [], [], PATIENCE)[0] == [watched]
        with open(watched, "rb", buffering=0, closefd=False) as descriptor:
            descriptor.read(8)
        with contextlib.suppress(TimeoutError):
            received = member.receive(0)
    assert received == b"hello"


def test_a_closed_node_aborts_its_groups_and_creates_no_others(pair):
    root, member = pair()
    with Node(ANY) as node:
        alone = node.group([node.address])
        alone.send(b"unreceived")
    node.close()
    with pytest.raises(GroupEnded, match="^the group was aborted at this node$"):
        alone.send(b"late")
    with pytest.raises(TreecastError, match="^the node has been closed$"):
        node.group([node.address], group=2)


def test_a_node_may_decide_how_long_threads_spin():
    with Node(ANY, spin_us=None) as node, node.group([node.address], offload="auto") as group:
        assert group.offload_status.startswith("offload nic, chosen because ")


def test_counters_count_packets(pair):
    root, member = pair(transport="packets")
    root.send(bytes(10_000))
    assert member.receive(PATIENCE) == bytes(10_000)
    assert (root.counters["sent"], member.counters["accepted"]) == (8, 8)
    assert (root.member, member.member) == (0, 1)
    with Node(ANY) as node:
        assert node.strays == {"malformed": 0, "unknown_group": 0, "unauthentic": 0}
