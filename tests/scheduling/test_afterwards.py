"""Work that is put off: it waits while a request is open, keeps its order, and a fault in it stops nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from buildd.scheduling import afterwards
from buildd.scheduling.afterwards import Afterwards


class Desk:
    """Requests that are open, and the work that was done."""

    def __init__(self) -> None:
        self.open = 0
        self.done: list[int] = []
        self.work = Afterwards(self._in_pool, lambda: self.open > 0)

    async def _in_pool(self, work: Callable[[], None]) -> None:
        await asyncio.sleep(0)
        work()

    def put_off(self, *numbers: int) -> None:
        for number in numbers:
            self.work.add(lambda number=number: self.done.append(number))  # type: ignore[misc]


def test_work_waits_until_no_request_is_open() -> None:
    desk = Desk()
    desk.open = 1
    desk.put_off(1, 2)
    asyncio.run(desk.work.go_on())
    assert desk.done == []
    desk.open = 0
    asyncio.run(desk.work.go_on())
    assert desk.done == [1, 2]


def test_work_stops_where_a_request_begins() -> None:
    desk = Desk()
    desk.put_off(1)
    desk.work.add(lambda: setattr(desk, "open", 1))
    desk.put_off(2)
    asyncio.run(desk.work.go_on())
    assert desk.done == [1]


def test_the_oldest_work_is_done_where_too_much_waits() -> None:
    desk = Desk()
    desk.open = 1
    desk.put_off(*range(afterwards.MOST + 3))
    asyncio.run(desk.work.go_on())
    assert desk.done == [0, 1, 2]


def test_two_who_go_on_keep_the_order() -> None:
    desk = Desk()
    desk.put_off(*range(9))

    async def both() -> None:
        await asyncio.gather(desk.work.go_on(), desk.work.go_on())

    asyncio.run(both())
    assert desk.done == [*range(9)]


def test_a_fault_stops_nothing() -> None:
    desk = Desk()
    desk.work.add(lambda: 1 // 0)  # type: ignore[arg-type, return-value]
    desk.put_off(1)
    asyncio.run(desk.work.go_on())
    assert desk.done == [1]
