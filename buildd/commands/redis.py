"""`buildd redis`: what a shell needs so that stock torch finds this user's store by Redis' protocol."""

from __future__ import annotations

import os
import shlex

import msgspec

from buildd.cli import DAEMON, OK
from buildd.commands.common import parser, print_note, print_problem
from buildd.commands.connect import connect
from buildd.frameworks import TAG, tag
from codegen.environment import user_file, user_values

_NAME, _ANY, _FIXED = "BUILDD_REDIS", "127.0.0.1:0", "127.0.0.1:6390"
_CACHES = (
    "TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE",
    "TORCHINDUCTOR_AUTOGRAD_REMOTE_CACHE",
    "TORCHINDUCTOR_AUTOTUNE_REMOTE_CACHE",
)
"""Inductor's switches for what it asks of such a cache."""


def run(arguments: list[str]) -> int:
    command = parser(
        "redis",
        "Have stock torch, with redis-py, use this user's store as its remote cache.",
        details=f"""\
In a shell: eval "$(buildd redis)"

The daemon speaks Redis' protocol where {_NAME} says, an address of this machine alone; to who sends the user's
token. Where no daemon runs, this command starts one that does. Below `buildd run` nothing of this is needed.""",
    )
    command.add_argument("--json", action="store_true", help="the variables as a JSON object")
    options = command.parse_args(arguments)
    file = user_file(os.environ)
    is_set = _NAME in os.environ or _NAME in user_values(os.environ)
    always = f'write {_NAME} = "{_FIXED}" under [environment] in {file}'
    with connect(os.environ if is_set else {**os.environ, _NAME: _ANY}, start=True) as client:
        endpoint = client.route.endpoint
    if endpoint is None or not endpoint.redis:
        print_problem(
            "the daemon that runs does not speak Redis' protocol",
            next_step=f"{always}, then: buildd down && buildd redis; its log says why, where that is written already",
        )
        return DAEMON
    if not is_set:
        print_note(f"for as long as this daemon lives; for always {always}")
    found = variables(endpoint.redis)
    if options.json:
        print(msgspec.json.encode(found).decode())
    else:
        print("\n".join(f"export {name}={shlex.quote(value)}" for name, value in found.items()))
    return OK


def variables(address: str) -> dict[str, str]:
    """For torch's environment: where the cache is, with the token, and the tag without which Inductor's keys leave the
    processor out."""
    from buildd.resp import token

    return {
        "TORCHINDUCTOR_REDIS_URL": f"redis://:{token(os.environ)}@{address}/0",
        **dict.fromkeys(_CACHES, "1"),
        TAG: tag(os.environ),
    }
