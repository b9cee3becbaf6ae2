/* The library that `buildd run` preloads: a compiler that is called by its path runs under the shim.

   Shims on PATH miss a build that calls /usr/local/cuda/bin/nvcc, and programs that ask where nvcc is write their path
   down. This library stands before exec and posix_spawn instead: if the program is a compiler by its name, a ccache or
   sccache that is to run one, a cmake that configures, or a build tool that can have tokens, it calls
   `buildd-cc PROGRAM ARGUMENT...`. It knows the names, and where its own folder is (from LD_PRELOAD); it reads no command
   line and decides nothing else. A process that has removed LD_PRELOAD alone from the new program's environment, or set
   BUILDD_DISABLE there, gets the program that it named. An environment that was cleared (SCons, `env -i`) names neither
   this library nor any variable of buildd's: it gets those that this process began with.

   A program that is linked statically, or that calls the kernel without libc (Go's), starts the compiler itself. The
   library is then loaded in the compiler, and has the shim take its place before it begins. No shim leaves the library
   in a compiler's environment, other than in that of a wrapper, of which it notes the process.

   A call that would fail fails as without us, and one that gives the program another name is not for the shim, which
   could not keep that name: clang is a C++ compiler if it is called clang++.

   The new program is left without this library if the library would harm it: if it is of another architecture or the
   library cannot be read from here (the loader would complain), and if a sanitizer has to be the first library in it.

   Called between vfork and exec: no memory is allocated, no lock taken, nothing of the process changed. Linked without
   libc, so that it binds to no version of it. */

#define _GNU_SOURCE
#include <alloca.h>
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <spawn.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <strings.h>
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "preloaded.h"
#include "program_file.h"
#include "program_name.h"

#define LAUNCHER "buildd-cc"
#define MARK ".buildd-launchers" /* in every folder of shims */
#define WRAPPER "BUILDD_WRAPPER" /* as in wrapper.c */
#define MOST_ROOM (1 << 15)	 /* on the caller's stack, which may be that of a small thread */

extern char **environ;

typedef int (*exec_function)(const char *, char *const[], char *const[]);
typedef int (*spawn_function)(pid_t *, const char *, const posix_spawn_file_actions_t *, const posix_spawnattr_t *,
			      char *const[], char *const[]);

static exec_function next_execve, next_execvpe;
static spawn_function next_spawn, next_spawnp;

static void find_next(void)
{
	next_execve = (exec_function)dlsym(RTLD_NEXT, "execve");
	next_execvpe = (exec_function)dlsym(RTLD_NEXT, "execvpe");
	next_spawn = (spawn_function)dlsym(RTLD_NEXT, "posix_spawn");
	next_spawnp = (spawn_function)dlsym(RTLD_NEXT, "posix_spawnp");
}

static int is_shim(const char *path)
{
	const char *name = base_of(path);
	size_t length = (size_t)(name - path);
	char mark[PATH_MAX];

	if (length == 0 || length + sizeof MARK > sizeof mark)
		return 0;
	memcpy(mark, path, length);
	memcpy(mark + length, MARK, sizeof MARK);
	return access(mark, F_OK) == 0;
}

/* ---------------------------------------------------------------- the call */

struct call {
	const char *path;
	char *const *arguments;
	char *const *environment;
};

/* Whether this process can read the library: it may be another user by now, or in another root. */
static int is_readable(const char *entry, size_t length)
{
	char path[PATH_MAX];

	memcpy(path, entry, length);
	path[length] = 0;
	return access(path, R_OK) == 0;
}

static int is_on(const char *value)
{
	static const char *const no[] = { "", "0", "false", "no", "off" };

	for (size_t i = 0; i < sizeof no / sizeof no[0]; i++)
		if (!value || strcasecmp(value, no[i]) == 0)
			return 0;
	return 1;
}

/* Whether the shim can do what a program of this name does with these arguments. */
static int is_taken(const char *name, char *const arguments[])
{
	return is_compiler(name) || (is_other_cache(name) && (asks_for_figures(arguments) || compiler_behind(arguments)));
}

/* Whether the shim has something to tell this program: a launcher to a cmake that configures, tokens to a build tool. */
static int is_told(const char *name, const struct call *call)
{
	return (strcmp(name, "cmake") == 0 && configures(call->arguments + 1)) ||
	       (is_builder(name) && is_on(value_of(call->environment, "BUILDD_JOBSERVER")));
}

/* The name of the tool that a program of this name is. */
static const char *known_as(const char *name)
{
	return strcmp(name, ".nvcc-wrapped") == 0 ? "nvcc" : name; /* nixpkgs' makeWrapper */
}

/* Whether a call is one of a program that runs under the shim. */
static int is_for_shim(const struct call *call)
{
	const char *name = base_of(call->path), *known = known_as(name);
	const char *called;

	if (!call->arguments || !call->arguments[0] || name == call->path)
		return 0;
	called = base_of(call->arguments[0]);
	return (is_taken(known, call->arguments + 1) || is_told(name, call)) &&
	       (strcmp(called, name) == 0 || strcmp(called, known) == 0) &&
	       !is_on(value_of(call->environment, "BUILDD_DISABLE")) &&
	       is_program(call->path) && !is_shim(call->path);
}

/* Bytes that `divert` and `release` need. */
static size_t room_to_divert(const struct call *call)
{
	return (count_of(call->arguments) + 3) * sizeof(char *) + PATH_MAX + sizeof LAUNCHER;
}

static size_t room_to_release(const struct call *call, const char *preload)
{
	return (count_of(call->environment) + 1) * sizeof(char *) + sizeof "LD_PRELOAD=" + strlen(preload);
}

/* Call buildd-cc, from the folder of the library's entry, under the program's name and with its path as first argument. */
static void divert(struct call *call, const char *entry, size_t length, char *room)
{
	size_t folder = length - (sizeof LIBRARY - 1), count = count_of(call->arguments);
	char **arguments = (char **)room, *launcher = room + (count + 3) * sizeof(char *);

	memcpy(launcher, entry, folder);
	memcpy(launcher + folder, LAUNCHER, sizeof LAUNCHER);
	if (access(launcher, X_OK) != 0)
		return; /* the store has gone */
	arguments[0] = call->arguments[0]; /* make tells it to the makes below */
	arguments[1] = (char *)call->path;
	for (size_t i = 1; i <= count; i++)
		arguments[i + 1] = call->arguments[i];
	call->path = launcher;
	call->arguments = arguments;
}

/* Take the library's entry out of LD_PRELOAD. */
static void release(struct call *call, const char *preload, const char *entry, size_t length, char *room)
{
	size_t count = count_of(call->environment), before = (size_t)(entry - preload), to = 0;
	char **environment = (char **)room, *text = room + (count + 1) * sizeof(char *);
	const char *after = entry + length + (entry[length] != 0);

	memcpy(text, "LD_PRELOAD=", 11);
	memcpy(text + 11, preload, before);
	if (!*after && before > 0)
		before--; /* the separator before the last entry */
	memcpy(text + 11 + before, after, strlen(after) + 1);
	for (size_t i = 0; i < count; i++) {
		if (strncmp(call->environment[i], "LD_PRELOAD=", 11) != 0)
			environment[to++] = call->environment[i];
		else if (text[11])
			environment[to++] = text;
	}
	environment[to] = NULL;
	call->environment = environment;
}

/* The call that is to be made, in memory of the caller's frame. Thousands of words are a link, which is not cached. */
#define PREPARE(call)                                                                                            \
	do {                                                                                                     \
		size_t length_ = 0;                                                                              \
		if (is_cleared((call)->environment) && room_to_restore((call)->environment) <= MOST_ROOM)        \
			(call)->environment = restored((call)->environment,                                      \
						       alloca(room_to_restore((call)->environment)));            \
		const char *preload_ = value_of((call)->environment, "LD_PRELOAD");                              \
		const char *entry_ = entry_in(preload_, &length_);                                               \
		if (entry_ && (call)->path && length_ < PATH_MAX) {                                              \
			int readable_ = is_readable(entry_, length_);                                            \
			if (readable_ && is_for_shim(call)) {                                                    \
				if (room_to_divert(call) <= MOST_ROOM)                                           \
					divert(call, entry_, length_, alloca(room_to_divert(call)));             \
			} else if ((!readable_ || is_harmed((call)->path)) &&                                    \
				   room_to_release(call, preload_) <= MOST_ROOM) {                               \
				release(call, preload_, entry_, length_, alloca(room_to_release(call, preload_))); \
			}                                                                                        \
		}                                                                                                \
	} while (0)

static int perform(const struct call *call)
{
	if (next_execve)
		return next_execve(call->path, call->arguments, call->environment);
	return (int)syscall(SYS_execve, call->path, call->arguments, call->environment);
}

/* Whether this process runs a wrapper for a shim (wrapper.c). */
static int is_wrapper(void)
{
	const char *noted = value_of(environ, WRAPPER);
	unsigned long process = 0;

	while (noted && *noted >= '0' && *noted <= '9')
		process = process * 10 + (unsigned long)(*noted++ - '0');
	return process == (unsigned long)getpid();
}

/* Have the shim take this process's place if it is a compiler that no shim has started. */
static void take_own_place(char *const arguments[])
{
	const char *path = (const char *)getauxval(AT_EXECFN);
	struct call call = { path, arguments, environ };

	if (!path || !is_compiler(known_as(base_of(path))) || is_wrapper())
		return;
	PREPARE(&call);
	if (call.path != path)
		perform(&call);
}

__attribute__((constructor)) static void begin(int count, char *arguments[], char *environment[])
{
	(void)count;
	find_next();
	keep_own();
	if (environment && environment == environ) /* glibc tells them to libraries too, musl does not */
		take_own_place(arguments);
}

/* The first program of this name on the caller's PATH; the name itself if it has a slash. NULL if there is none, and where
   a relative folder is reached: the program may begin in another one. */
static const char *search(const char *name, char *place)
{
	const char *path = value_of(environ, "PATH");
	char usual[256];
	size_t size = name ? strlen(name) + 1 : 0;

	if (size > 0 && strchr(name, '/'))
		return name;
	if (!path && confstr(_CS_PATH, usual, sizeof usual) <= sizeof usual)
		path = usual; /* as libc does; `env -i` leaves no PATH */
	while (size > 1 && path && *path) {
		size_t length = strcspn(path, ":");

		if (*path != '/')
			return NULL;
		if (length + 1 + size <= PATH_MAX) {
			memcpy(place, path, length);
			place[length] = '/';
			memcpy(place + length + 1, name, size);
			if (access(place, X_OK) == 0)
				return place;
		}
		path += length + (path[length] == ':');
	}
	return NULL;
}

/* ---------------------------------------------------------------- what programs call */

int execve(const char *path, char *const arguments[], char *const environment[])
{
	const struct call plain = { path, arguments, environment };
	struct call call = plain;

	PREPARE(&call);
	if (call.path == path && call.environment == environment)
		return perform(&call);
	perform(&call);
	return perform(&plain); /* the longer call may have been too long */
}

int execv(const char *path, char *const arguments[])
{
	return execve(path, arguments, environ);
}

int execvpe(const char *name, char *const arguments[], char *const environment[])
{
	char place[PATH_MAX];
	const char *found = search(name, place);

	if (found)
		execve(found, arguments, environment);
	/* libc knows what a name means that is none, and runs a file without #! by the shell. */
	if (next_execvpe)
		return next_execvpe(name, arguments, environment);
	errno = ENOENT;
	return -1;
}

int execvp(const char *name, char *const arguments[])
{
	return execvpe(name, arguments, environ);
}

/* The arguments of execl and its like, as an array in the caller's frame; behind their NULL, execle has an environment. */
#define COLLECT(first, list, environment, has_environment)                              \
	do {                                                                            \
		va_list rest_;                                                          \
		size_t count_ = (first) != NULL;                                        \
		va_start(rest_, first);                                                 \
		while (count_ > 0 && va_arg(rest_, char *))                             \
			count_++;                                                       \
		va_end(rest_);                                                          \
		(list) = alloca((count_ + 1) * sizeof(char *));                         \
		(list)[0] = (char *)(first);                                            \
		va_start(rest_, first);                                                 \
		for (size_t i_ = 1; i_ <= count_; i_++)                                 \
			(list)[i_] = va_arg(rest_, char *);                             \
		(environment) = (has_environment) ? va_arg(rest_, char *const *) : environ; \
		va_end(rest_);                                                          \
	} while (0)

int execl(const char *path, const char *first, ...)
{
	char **arguments, *const *environment;

	COLLECT(first, arguments, environment, 0);
	return execve(path, arguments, environment);
}

int execlp(const char *name, const char *first, ...)
{
	char **arguments, *const *environment;

	COLLECT(first, arguments, environment, 0);
	return execvpe(name, arguments, environment);
}

int execle(const char *path, const char *first, ...)
{
	char **arguments, *const *environment;

	COLLECT(first, arguments, environment, 1);
	return execve(path, arguments, environment);
}

int posix_spawn(pid_t *process, const char *path, const posix_spawn_file_actions_t *actions,
		const posix_spawnattr_t *attributes, char *const arguments[], char *const environment[])
{
	const struct call plain = { path, arguments, environment };
	struct call call = plain;
	int problem;

	if (!next_spawn)
		find_next(); /* called by another library's constructor */
	if (!next_spawn)
		return ENOSYS;
	PREPARE(&call);
	problem = next_spawn(process, call.path, actions, attributes, call.arguments, call.environment);
	if (problem && (call.path != path || call.environment != environment))
		problem = next_spawn(process, path, actions, attributes, arguments, environment);
	return problem;
}

int posix_spawnp(pid_t *process, const char *name, const posix_spawn_file_actions_t *actions,
		 const posix_spawnattr_t *attributes, char *const arguments[], char *const environment[])
{
	char place[PATH_MAX];
	const char *found = search(name, place);
	int problem = found ? posix_spawn(process, found, actions, attributes, arguments, environment) : ENOENT;

	if (problem && next_spawnp)
		return next_spawnp(process, name, actions, attributes, arguments, environment);
	return problem;
}
