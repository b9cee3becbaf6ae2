"""buildd's own variables, and those that say where a user's files are.

Knows no request. A user's settings for all projects stand under [environment] in $XDG_CONFIG_HOME/buildd/config.toml.
"""

from __future__ import annotations

from codegen.variable import CACHE, LAYOUT, LOG, SCHED, SECRET, SOURCE, STRIP, Kind, Section, Variable, rows

V = Variable
_FOLDER = "says where a user's files are"

# fmt: off
VARIABLES = rows(
    Section.BUILDD,
    V("BUILDD_DISABLE", Kind.BUILDD_SWITCH, "0", (CACHE,), "", "stand-ins run the plain tool; no daemon, no cache",
      acts=True),
    V("BUILDD_RECACHE", Kind.BUILDD_SWITCH, "0", (CACHE,), "", "every action runs again and overwrites its entry",
      acts=True),
    V("BUILDD_DIR", Kind.PATH, "", (CACHE,), "", "folder of the store; $XDG_CACHE_HOME/buildd by default", acts=True),
    V("BUILDD_CACHE_SIZE", Kind.SIZE, "", (CACHE,), "", "bound of the store; 20 GiB or a tenth of the disk by default",
      acts=True),
    V("BUILDD_RUNTIME_DIR", Kind.PATH, "", (LAYOUT,), "",
      "folder of sockets and lock; $XDG_RUNTIME_DIR/buildd by default", acts=True),
    V("BUILDD_JOBS", Kind.COUNT, "", (SCHED,), "", "most jobs at once on this machine; all CPUs by default", acts=True),
    V("BUILDD_MEMORY", Kind.SIZE, "", (SCHED,), "",
      "memory that jobs may use together; what the host has left by default", acts=True),
    V("BUILDD_PRELOAD", Kind.BUILDD_SWITCH, "1", (SCHED,), "",
      "cudafe++ runs with a library that spares it pages it never looks at; 0: as it is", acts=True),
    V("BUILDD_SPLIT_KERNELS", Kind.BUILDD_SWITCH, "1", (SOURCE,), "",
      "what launches a GEMM of sm_90a is a source of its own, for the host compiler alone; 0: one for both, by nvcc",
      acts=True),
    V("BUILDD_CLI_SERVER", Kind.BUILDD_SWITCH, "1", (SCHED,), "",
      "commands run in a process of the daemon's that has everything imported; 0: each by itself", acts=True),
    V("BUILDD_WARM_WORKERS", Kind.BUILDD_SWITCH, "1", (SCHED,), "",
      "jobs of kinds triton and torch fork a process that has the package imported; 0: each is a fresh one", acts=True),
    V("BUILDD_BUILD_ID", Kind.STRING, "", (LOG,), "", "the build that a stand-in's request belongs to", acts=True),
    V("BUILDD_JOBSERVER", Kind.STRING, "", (SCHED,), "",
      "set by `buildd run -j`: where stand-ins of make and ninja find the jobs that all share", acts=True),
    V("BUILDD_MAP_PATHS", Kind.PATH, "", (CACHE,), "",
      "set by `buildd run --map-paths`: the folder whose path no object is to hold", acts=True),
    V("BUILDD_RECORD", Kind.PATH, "", (LOG,), "",
      "set by `buildd run --record`: the folder where programs note the Triton kernels that they compile", acts=True),
    V("BUILDD_RECORD_ROOT", Kind.PATH, "", (LOG,), "",
      "set by `buildd run --record`: the folder that paths in the manifest are relative to", acts=True),
    V("BUILDD_IDLE_TIMEOUT_S", Kind.NUMBER, "", (SCHED,), "", "an idle daemon ends after this many seconds", acts=True),
    V("BUILDD_TCP", Kind.STRING, "", (LAYOUT,), "", "address to serve over TCP, with CURVE and a list of client keys",
      acts=True),
    V("BUILDD_REDIS", Kind.STRING, "", (LAYOUT,), "",
      "address of this machine alone where the daemon speaks Redis' protocol, for stock torch: see `buildd redis`",
      acts=True),
    V("BUILDD_TCP_KEY", Kind.PATH, "", (SECRET,), "", "file of the client's CURVE key; never sent, stored or printed"),
    V("BUILDD_KEY_DIR", Kind.PATH, "", (LAYOUT,), "",
      "folder of the user's keys and the list of those that they trust; $XDG_CONFIG_HOME/buildd by default", acts=True),
    V("BUILDD_LOG", Kind.LOG_LEVEL, "INFO", (LOG,), "", "level of the daemon's own log"),
    V("BUILDD_*", Kind.STRING, "", (LOG,), "", "no such variable; `buildd env` says so"),
    V("NO_COLOR", Kind.ON_IF_SET, "", (LOG,), "programs print without colours", "same", acts=True),
    V("XDG_CACHE_HOME", Kind.PATH, "~/.cache", (CACHE,), _FOLDER, "the store is below it", acts=True),
    V("XDG_CONFIG_HOME", Kind.PATH, "~/.config", (LAYOUT,), _FOLDER,
      "buildd/config.toml below it holds the user's settings", acts=True),
    V("XDG_RUNTIME_DIR", Kind.PATH, "", (LAYOUT,), _FOLDER, "sockets and lock are below it", acts=True),
    V("HOME", Kind.PATH, "", (LAYOUT,), _FOLDER, "what ~ stands for; tools of our own targets do not see it",
      acts=True),
    V("VIRTUAL_ENV", Kind.PATH, "", (LAYOUT,), "the active virtual environment",
      "forwarded; a request names its interpreter", acts=True),
    V("SSH_AUTH_SOCK", Kind.PATH, "", (SECRET, STRIP), "socket of a key agent", "never sent"),
)
