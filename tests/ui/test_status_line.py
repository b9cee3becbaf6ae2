"""The status line below a program's output: never in its way, never left behind."""

from __future__ import annotations

import random

import pytest

from buildd.ui.append_state import AppendState, Room
from buildd.ui.status_line import StatusLine
from tests.support.screen import Screen

WORDS = "12 done, 3 running"


def room_after(data: bytes, columns: int = 40) -> Room:
    state = AppendState()
    state.take(data)
    return state.room(columns)


@pytest.mark.parametrize(
    ("data", "room"),
    [
        (b"", Room.HERE),
        (b"gcc -c a.c\n", Room.HERE),
        (b"gcc -c a.c", Room.BELOW),
        (b"\x1b[01;31merror:\x1b[0m no \xe2\x80\x98x\xe2\x80\x99\n", Room.HERE),
        (b"\r[1/9] a.o\x1b[K", Room.BELOW),
        (b"\r" + 40 * b"x" + b"\x1b[K", Room.EDGE),
        (40 * b"x", Room.NONE),
        (41 * b"x", Room.BELOW),
        (b"a line\r", Room.NONE),
        (b"a line\rshort", Room.NONE),
        (b"a line\rlonger line", Room.BELOW),
        (b"a line\r\x1b[2K", Room.HERE),
        (b"one\ntwo\x1b[A", Room.NONE),
        (b"one\ntwo\x1b[A\r\x1b[J", Room.HERE),
        (b"one\ntwo\x1b[A\n", Room.NONE),
        (b"one\ntwo\x1b[A\n\x1b[2K\n", Room.HERE),
        (b"100 %\b\b\b", Room.NONE),
        (b"\x1b[10;1Htext", Room.NONE),
        (b"\x1b[10;1Htext\x1b[2J", Room.BELOW),
        (b"\x1b[1;20r", Room.NONE),
        (b"text\x1b7", Room.NONE),
        (b"text\x1b7\x1b[B\x1b8", Room.BELOW),
        (b"text\x1b[?1049h", Room.NONE),
        (b"text\x1b[?1049h\x1b[1;24r\x1b[H\x1b[2Jvim\x1b[?1049l", Room.BELOW),
        (b"\x1b[?2026hframe", Room.NONE),
        (b"\x1b[?25lbar\x1b[?25h", Room.BELOW),
        (b"\x1b]0;title\x07", Room.HERE),
        (b"\x1b]8;;https://x\x1b\\link\x1b]8;;\x1b\\", Room.BELOW),
        (b"\x1b[3", Room.NONE),
        (b"\x1b]0;tit", Room.NONE),
        (b"half of \xe2\x80", Room.NONE),
        (b"latin \xe9 text", Room.BELOW),
        (b"\x1bZ", Room.NONE),
    ],
)
def test_where_there_is_room(data: bytes, room: Room) -> None:
    assert room_after(data) is room
    state = AppendState()
    for index in range(len(data)):
        state.take(data[index : index + 1])
    assert state.room(40) is room, "in pieces"


@pytest.mark.parametrize("seed", range(20))
def test_whole_lines_leave_the_state_of_their_single_bytes(seed: int) -> None:
    source = random.Random(seed)
    pieces = (
        b"text",
        b"\n",
        b"\n\n",
        b"\r",
        b"\t",
        b"\x1b[1;31m",
        b"\x1b[0m",
        b"\x1b[K",
        b"\x1b[A",
        b"\xe2\x80\x98",
        b"\xff",
    )
    rare = (b"\x1b7", b"\x1b8", b"\x1b[2J", b"\x1b[?1049h", b"\x1b[?1049l", b"\x1b]0;a\nb\x07", b"\x1b[5;1H", b"\x0b")
    data = b"".join(source.choice(pieces if source.random() < 0.95 else rare) for _ in range(200))
    at_once, singly = AppendState(), AppendState()
    for end in range(0, len(data), 37):
        at_once.take(data[end : end + 37])
    for byte in data:
        singly.take(bytes([byte]))
    assert vars(at_once) == vars(singly)


def test_wide_characters_near_the_edge_leave_no_room() -> None:
    assert room_after("\u6f22".encode() * 10) is Room.BELOW
    assert room_after("\u2501".encode() * 30) is Room.NONE, "30 columns or 60"


def test_at_the_edge_a_resize_takes_no_character_away() -> None:
    state = AppendState()
    state.take(b"\r" + 40 * b"x" + b"\x1b[K")
    state.resize(40)
    assert state.room(60) is Room.EDGE, "the cursor stands on the last character"
    state.take(b"\rshort\x1b[K")
    assert state.room(60) is Room.BELOW


def pieces(random: random.Random) -> list[bytes]:
    """The output of make, ninja, progress bars and compilers, cut anywhere."""
    made: list[bytes] = []
    for _ in range(random.randint(3, 25)):
        word = b"abcdefghij" * 9
        text = word[: random.choice((0, 1, 7, 20, 39, 40, 41, 79, 80, 85))]
        made.append(
            random.choice(
                (
                    text + b"\n",
                    text,
                    b"\r" + text[:40] + b"\x1b[K",
                    b"\r" + text[:30],
                    b"\r\x1b[2K" + text[:30],
                    b"\x1b[1m" + text + b"\x1b[0m\n",
                    b"\n\n\x1b[2A" + text[:20] + b"\x1b[K\n\x1b[K\n\x1b[K",
                    b"\r\x1b[J" + text,
                    b"50 %\b\b\b\b",
                    b"\n",
                )
            )
        )
    # What is as wide as the terminal, as ninja's line, is followed by a carriage return.
    whole = b"".join(text + b"\r" if len(text) == 44 else text for text in made)
    cuts = sorted(random.randrange(len(whole) + 1) for _ in range(random.randint(0, 20)))
    return [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]


@pytest.mark.parametrize("seed", range(400))
def test_the_programs_output_is_as_without_the_line(seed: int) -> None:
    chance = random.Random(seed)
    with_line, without, line = Screen(), Screen(), StatusLine(40, "2")
    sent = b""
    for piece in pieces(chance):
        with_line.write(line.show(chance.choice(("", WORDS, "7 done", 90 * "x"))))
        with_line.write(line.pass_on(piece))
        without.write(piece)
        sent += piece
        shown = [words for words in with_line.text if WORDS in words]
        assert len(shown) <= 1
        if line.is_drawn:
            at, column = with_line.cursor
            assert (at, column) == without.cursor
            assert with_line.text[: at + 1][-1:] == without.text[: at + 1][-1:] or not without.text[at:]
    with_line.write(line.remove())
    assert with_line.text == without.text, sent
    assert with_line.cursor == without.cursor


def test_the_line_goes_with_a_line_feed_that_the_user_typed() -> None:
    screen, line = Screen(), StatusLine(40)
    screen.write(line.pass_on(b"compiling"))
    screen.write(line.show(WORDS))
    assert screen.text == ["compiling", WORDS]
    screen.write(b"\n")  # the terminal's echo
    screen.write(line.pass_on(b" a.c\n"))
    assert screen.text == ["compiling", " a.c", WORDS]


def test_the_bytes_of_the_program_are_unchanged_and_in_order() -> None:
    line = StatusLine(80)
    line.show(WORDS)
    data = bytes(range(256)) * 3
    assert line.pass_on(data).find(data) >= 0


def test_a_line_is_never_wider_than_the_terminal() -> None:
    for columns in (1, 2, 10, 40):
        screen, line = Screen(columns), StatusLine(columns)
        screen.write(line.show(300 * "w"))
        assert max(map(len, screen.text), default=0) == columns - 1
        assert screen.cursor == (0, 0)
