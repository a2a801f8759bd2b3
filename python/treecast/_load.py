"""Runs under load: concurrent multicasts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import SupportsIndex

from treecast._treecast import (
    LOAD_CYCLES,
    SATURATION_PRECISION,
    Fabric,
    LoadResult,
    LoadRun,
    Parameters,
    SaturationResult,
)


def load(
    fabric: Fabric,
    scheme: str,
    *,
    load: float,
    degree: SupportsIndex,
    order: str | None = None,
    offload: str = "host",
    message: SupportsIndex | None = None,
    arrivals: str = "exponential",
    destination_sets: str = "random",
    cycles: SupportsIndex = LOAD_CYCLES,
    warmup: SupportsIndex | None = None,
    backlog_max: SupportsIndex | None = None,
    parameters: Parameters | Mapping[str, int | float | str] | None = None,
    seed: SupportsIndex = 1,
    simulator: str = "event",
    trace: str | os.PathLike[str] | None = None,
) -> LoadResult:
    """Simulates a fabric on which every host multicasts repeatedly.

    `load` is the offered load in flits/host/cycle, each multicast counted once: above 0 and at most 1, the capacity of a
    link. `degree` is the number of destinations of each multicast; 1 is unicast. `scheme`, `order` and `offload`
    are as for `plan` and `simulate`. `message` is the length of each message in flits; None means one packet. `arrivals`
    is the arrival process: `exponential`, `fixed`, `bernoulli`, `burst:size=8`; `destination_sets` the choice of destinations:
    `random`, `fixed`, `neighbours`, `hot-spot:percent=10`, and with `degree` 1 `transpose`, `bit-complement`, `bit-reverse`, `shuffle`,
    `tornado`, `next-group`.

    The run lasts `cycles`, of which the first `warmup` are not measured; None means half. It ends as `saturated` when the number of
    multicasts in flight keeps growing, or exceeds `backlog_max`; None means 64 per host. `parameters`, `seed`, `simulator`
    and `trace` are as for `simulate`. docs/load.md defines the measurements and saturation.

    The GIL is released. Ctrl-C ends the run.

    Raises TreecastError if the fabric does not support the scheme, and for invalid arguments; OSError if the trace
    cannot be written.

    >>> fabric = Fabric("icpp98")
    >>> load(fabric, "binomial", load=0.01, degree=3, offload="nic", cycles=200_000).status
    'complete'
    >>> load(fabric, "binomial", load=0.05, degree=3, offload="nic", cycles=200_000).status
    'saturated'
    """
    run = LoadRun(
        fabric,
        scheme,
        degree,
        order,
        offload,
        message,
        arrivals,
        destination_sets,
        cycles,
        warmup,
        backlog_max,
        parameters,
        seed,
        simulator,
    )
    return run.simulate(load, trace)


def find_saturation(
    fabric: Fabric,
    scheme: str,
    *,
    degree: SupportsIndex,
    precision: float = SATURATION_PRECISION,
    order: str | None = None,
    offload: str = "host",
    message: SupportsIndex | None = None,
    arrivals: str = "exponential",
    destination_sets: str = "random",
    cycles: SupportsIndex = LOAD_CYCLES,
    warmup: SupportsIndex | None = None,
    backlog_max: SupportsIndex | None = None,
    parameters: Parameters | Mapping[str, int | float | str] | None = None,
    seed: SupportsIndex = 1,
    simulator: str = "event",
) -> SaturationResult:
    """Searches for the highest load that a scheme sustains.

    It begins with the capacity of the hosts' links, and halves the load until a run is sustained; then it bisects, until the
    interval is at most `precision` wide, relative to the load: from 0.001 to 0.5. The
    other arguments are as for `load`. It takes about ten runs.

    The GIL is released. Ctrl-C ends the search.

    Raises TreecastError as `load` does, and for a precision out of range.

    >>> fabric = Fabric("icpp98")
    >>> for scheme in ["binomial", "tree-worm"]:
    ...     found = find_saturation(fabric, scheme, degree=3, offload="nic", cycles=100_000, precision=0.2)
    ...     print(scheme, found.saturation_offered_load)
    binomial 0.015625
    tree-worm 0.03125
    """
    run = LoadRun(
        fabric,
        scheme,
        degree,
        order,
        offload,
        message,
        arrivals,
        destination_sets,
        cycles,
        warmup,
        backlog_max,
        parameters,
        seed,
        simulator,
    )
    return run.find_saturation(precision)
