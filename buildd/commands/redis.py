"""`buildd redis`: prints the variables with which stock torch finds this user's store through Redis' protocol."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Mapping

import msgspec

from buildd.client.connect import connect
from buildd.exits import DAEMON, OK
from buildd.shims.framework_environment import TAG, tag
from buildd.ui.problems import parser, print_note, print_problem
from codegen.variables.settings import user_file, user_values
from protocol.client import find
from protocol.endpoint import Endpoint, runtime_folder

_NAME, _ANY, _FIXED = "BUILDD_REDIS", "127.0.0.1:0", "127.0.0.1:6390"
_CACHES = (
    "TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE",
    "TORCHINDUCTOR_AUTOGRAD_REMOTE_CACHE",
    "TORCHINDUCTOR_AUTOTUNE_REMOTE_CACHE",
)
"""Inductor's switches for its remote caches."""
_ROOM_WAIT_S, _POLL_S = 10.0, 0.01


def run(arguments: list[str]) -> int:
    command = parser(
        "redis",
        "Let stock torch (with redis-py) use this user's store as its remote cache.",
        details=f"""\
In a shell: eval "$(buildd redis)"

The daemon speaks Redis' protocol at the address in {_NAME}, to programs on this machine that send \
the user's token. If no daemon is running, or the running one does not speak it, this command starts one \
that does. Programs under `buildd run` do not need this.""",
    )
    command.add_argument("--json", action="store_true", help="print the variables as a JSON object")
    options = command.parse_args(arguments)
    file = user_file(os.environ)
    is_set = _NAME in os.environ or _NAME in user_values(os.environ)
    always = f'write {_NAME} = "{_FIXED}" under [environment] in {file}'
    environ = dict(os.environ) if is_set else {**os.environ, _NAME: _ANY}
    former = find(runtime_folder(environ))
    endpoint = _endpoint(environ)
    if former is not None and (endpoint is None or not endpoint.redis):
        # It was started without. A new one begins beside it, while it finishes what it is doing.
        with connect(environ, start=False) as client:
            client.drain()
        _await_room(environ, former)
        endpoint = _endpoint(environ)
    if endpoint is None or not endpoint.redis:
        print_problem(
            "the running daemon does not speak Redis' protocol",
            next_step=f"buildd doctor names the daemon's log, which says why; for all later daemons {always}",
        )
        return DAEMON
    if not is_set:
        print_note(f"this holds until the daemon ends; for all later daemons {always}")
    found = variables(endpoint.redis)
    if options.json:
        print(msgspec.json.encode(found).decode())
    else:
        print("\n".join(f"export {name}={shlex.quote(value)}" for name, value in found.items()))
    return OK


def _await_room(environ: Mapping[str, str], former: Endpoint) -> None:
    """Wait until `former`, which was asked to end, lets another daemon start beside it: it answers before it does."""
    deadline = time.monotonic() + _ROOM_WAIT_S
    while time.monotonic() < deadline:
        found = find(runtime_folder(environ))
        if found is None or found.instance != former.instance:
            return
        time.sleep(_POLL_S)


def _endpoint(environ: Mapping[str, str]) -> Endpoint | None:
    """The daemon's; starts one with this environment if none runs."""
    with connect(environ, start=True) as client:
        return client.route.endpoint


def variables(address: str) -> dict[str, str]:
    """Variables for torch: address and token of the cache, and the tag that puts the processor into Inductor's keys."""
    from buildd.daemon.redis import token

    return {
        "TORCHINDUCTOR_REDIS_URL": f"redis://:{token(os.environ)}@{address}/0",
        **dict.fromkeys(_CACHES, "1"),
        TAG: tag(os.environ),
    }
