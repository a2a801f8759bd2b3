"""Broadcasts and barriers of mpi4py, of buffers and pickled objects, and other collectives, compared with what is expected."""

from array import array

from mpi4py import MPI

ROUNDS = 20
LENGTHS = (1, 300, 20000)


def buffers(comm: MPI.Intracomm, root: int) -> int:
    for length in LENGTHS:
        sent = array("i", range(root, root + length))
        for broadcast in (comm.Bcast, lambda buffer, root: comm.Ibcast(buffer, root).Wait()):
            received = array("i", sent) if comm.rank == root else array("i", [-1]) * length
            broadcast(received, root)
            assert received == sent, f"{length} integers of root {root}"
    return 2 * len(LENGTHS)


def passed_on(comm: MPI.Intracomm, root: int) -> int:
    """Calls that the shim passes on to the MPI."""
    one, all_ranks = array("d", [comm.rank + 1.0] * 1000), array("d", [0.0] * 1000 * comm.size)
    comm.Allgather(one, all_ranks)
    assert [all_ranks[1000 * rank] for rank in range(comm.size)] == [rank + 1.0 for rank in range(comm.size)]
    total = array("d", [0.0] * 1000)
    comm.Allreduce(one, total)
    assert total[999] == comm.size * (comm.size + 1) / 2
    total[999] = 0
    comm.Reduce(one, total, root=root)
    assert total[999] == (comm.size * (comm.size + 1) / 2 if comm.rank == root else 0)
    comm.Bcast(array("i"), root)
    return 1


def objects(comm: MPI.Intracomm, root: int) -> int:
    sent = {"root": root, "text": "x" * 3000, "list": [1.5, None]}
    assert comm.bcast(sent if comm.rank == root else None, root) == sent, f"an object of root {root}"
    return 1


def main() -> None:
    comm = MPI.COMM_WORLD.Dup()
    broadcasts = 0
    for number in range(ROUNDS):
        root = number % comm.size
        broadcasts += buffers(comm, root) + objects(comm, root) + passed_on(comm, root)
        comm.Barrier()
    comm.Free()
    if MPI.COMM_WORLD.rank == 0:
        print(f"mpi4py: {broadcasts} broadcasts", flush=True)


main()
