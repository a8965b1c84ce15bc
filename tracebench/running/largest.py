"""The largest batch that fits: ``batch_size=max``.

Sizes are doubled until one does not fit, then the gap is halved. Each try is a process of its own under the limits of
the case, so that what runs out of memory, on the device or on the host, leaves nothing behind for the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tracebench.record import BatchSearch, BatchTry, Record

#: The first size that is tried.
START = 8
#: The search ends when the largest that fits is known to this share of it.
CLOSE = 1 / 16
#: How often a smaller batch is taken if the case itself runs out of memory, and by what.
RETREATS, RETREAT = 6, 0.75


def run_largest(
    attempt: Callable[[int], BatchTry], case: Callable[[int], Record], limit: int
) -> tuple[Record, BatchSearch]:
    """Find the largest batch size up to ``limit`` that fits, and run the case with it.

    Args:
        attempt: makes the calls of a case with a batch of that size that need the most memory, and tells how it went.
        case: runs the case with a batch of that size. It may need more than ``attempt`` made of it, as a soundness
            stage with many probes does; then smaller ones are taken.
        limit: no larger batch is tried.

    Where nothing fits, the case is run with the smallest batch that was tried, and its record says why.
    """
    tries = list(search(attempt, limit))
    found = max((one.batch_size for one in tries if one.outcome == "fits"), default=None)
    size = found if found is not None else min(one.batch_size for one in tries)
    record = case(size)
    for _ in range(RETREATS):
        if record.status != "oom" or size == 1:
            break
        tries.append(BatchTry(size, "oom", record.wall_s, f"the whole case: {_message(record)}"))
        size = max(1, int(size * RETREAT))
        record = case(size)
    return record, BatchSearch(limit, tuple(tries), _ended(tries, limit))


def search(attempt: Callable[[int], BatchTry], limit: int) -> Iterator[BatchTry]:
    """Yield each try, up to the one that settles it.

    A try that fails for anything but memory or time ends the search: other sizes would tell no more.
    """
    size, fits, fails = min(START, limit), 0, limit + 1
    while True:
        made = attempt(size)
        yield made
        if made.outcome == "fits":
            fits = size
        elif made.outcome == "error":
            return
        else:
            fails = size
        if fails > limit:
            if fits == limit:
                return
            size = min(2 * fits, limit)
        elif fails - fits <= max(1, int(fits * CLOSE)):
            return
        else:
            size = (fits + fails) // 2


def _ended(tries: list[BatchTry], limit: int) -> str:
    """Say why no larger batch was taken."""
    failed = [one for one in tries if one.outcome != "fits"]
    if not failed:
        return f"batch_limit={limit} fits; a larger one was not tried"
    last = min(failed, key=lambda one: one.batch_size)
    return f"{last.batch_size} samples do not fit ({last.outcome}): {last.detail}"


def _message(record: Record) -> str:
    return record.error.message if record.error else record.status
