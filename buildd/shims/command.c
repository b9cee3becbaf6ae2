/* The command that the shim was called for: its tool, arguments, folder and variables. Runs the tool, or ends as it did.

   NAMES, the variables that it sends, is defined on the compiler's command line. */

#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "program_name.h"
#include "shim.h"

#ifndef NAMES
#define NAMES "PATH,LANG,LC_*"
#endif

char tool[PATH_MAX];
char **arguments;
static char *called; /* what a cmake or build tool is to see as its name; NULL: its path */

void execute(const char *path, char **words)
{
	syscall(SYS_execve, path, words, environ);
}

void __attribute__((noreturn)) become_tool(void)
{
	if (!tool[0]) {
		fprintf(stderr, "buildd: there is no %s behind this shim\n", arguments[0]);
		_exit(127);
	}
	arguments[0] = called ? called : tool;
	execute(tool, arguments);
	fprintf(stderr, "buildd: cannot run %s: %s\n", tool, strerror(errno));
	_exit(errno == ENOENT ? 127 : 126);
}

int is_passed_through;

/* Fail in place of a compile: `buildd warm --prove` wants to know what would be compiled. */
void __attribute__((noreturn)) refuse(const char *why, size_t length)
{
	fprintf(stderr, "buildd: not compiled, because this run has to find everything in the cache: %.*s\n", (int)length,
		why);
	_exit(1);
}

/* In a proof, only the daemon can say that a call compiles nothing. */
static void check_proof(void)
{
	static const char why[] = "no daemon could look it up";
	const char *folder = getenv("BUILDD_PROVE");
	char place[PATH_MAX];
	FILE *notes;

	if (!folder || folder[0] != '/' || is_passed_through || is_on(getenv("BUILDD_DISABLE"), 0))
		return;
	snprintf(place, sizeof place, "%s/needed.jsonl", folder);
	notes = fopen(place, "ae");
	if (notes) {
		fprintf(notes, "[\"compiler\",\"called in process %ld\",\"%s\"]\n", (long)getpid(), why);
		fclose(notes);
	}
	refuse(why, sizeof why - 1);
}

void run_tool(void)
{
	check_proof();
	/* Compilers called by the tool are part of this one command. A ccache that is called gcc runs the next gcc on PATH:
	   the shim would run the ccache again. */
	end_host();
	setenv("BUILDD_DISABLE", "1", 1);
	leave_path();
	become_tool();
}

void end_as(uint64_t status, uint64_t number)
{
	struct rlimit none = { 0, 0 };

	if (number > 0) {
		setrlimit(RLIMIT_CORE, &none); /* the core would be the shim's, not the tool's */
		signal((int)number, SIG_DFL);
		raise((int)number);
		status = 128 + number;
	}
	_exit((int)status);
}

/* Whether this is a program, and not a shim under another name. */
static int is_program(const char *path)
{
	struct stat status, self;

	return access(path, X_OK) == 0 && stat(path, &status) == 0 && S_ISREG(status.st_mode) &&
	       stat("/proc/self/exe", &self) == 0 && (status.st_ino != self.st_ino || status.st_dev != self.st_dev);
}

/* The first program of this name on PATH that is no shim. */
static int search(const char *name, char *found)
{
	const char *path = getenv("PATH");

	while (path && *path) {
		size_t length = strcspn(path, ":");
		char folder[PATH_MAX];

		if (length > 0 && length < sizeof folder) {
			memcpy(folder, path, length);
			folder[length] = 0;
			if (folder[0] == '/' && snprintf(found, PATH_MAX, "%s/%s", folder, name) < PATH_MAX &&
			    is_program(found) && !is_ours(folder))
				return 1;
		}
		path += length + (path[length] == ':');
	}
	found[0] = 0;
	return 0;
}

/* The tool behind a program: the one that its folder of shims records, else the next one on PATH; the program itself if
   its folder is no folder of shims. */
static int behind(const char *program, char *found)
{
	char folder[PATH_MAX], record[PATH_MAX];
	const char *slash = strrchr(program, '/');
	ssize_t length;

	if (snprintf(folder, sizeof folder, "%.*s", (int)(slash - program), program) >= (int)sizeof folder)
		return 0;
	if (!is_ours(folder)) {
		snprintf(found, PATH_MAX, "%s", is_program(program) ? program : "");
		return found[0] != 0;
	}
	if (snprintf(record, sizeof record, "%s/" MARK "/%s", folder, slash + 1) < (int)sizeof record) {
		length = readlink(record, found, PATH_MAX - 1);
		if (length > 0) {
			found[length] = 0;
			if (found[0] == '/' && is_program(found))
				return 1;
		}
	}
	return search(slash + 1, found);
}

/* Find the tool; returns the name under which the shim was called. */
const char *find_tool(char **argv)
{
	const char *self = own_path();

	arguments = argv;
	if (!self[0])
		return "";
	if (strcmp(strrchr(self, '/') + 1, "buildd-cc") != 0) {
		behind(self, tool);
		return strrchr(self, '/') + 1;
	}
	/* A tree's launcher is called by another one: of another store, or named twice. */
	while (argv[1] && argv[2] && strcmp(base_of(argv[1]), "buildd-cc") == 0)
		argv++;
	if (!argv[1]) {
		fprintf(stderr, "usage: buildd-cc COMPILER ARGUMENT...\n");
		_exit(2);
	}
	if (is_other_cache(base_of(argv[1]))) {
		if (asks_for_figures(argv + 2))
			show_figures(base_of(argv[1]));
		/* Only one cache is of use. What follows the compiler is the same. */
		argv = compiler_behind(argv + 2) ? (char **)compiler_behind(argv + 2) - 1 : argv;
	}
	arguments = argv + 1;
	if (strchr(argv[1], '/')) {
		char place[PATH_MAX];

		if (argv[1][0] == '/')
			behind(argv[1], tool);
		else if (getcwd(place, sizeof place) && strlen(place) + strlen(argv[1]) + 2 < sizeof place) {
			strcat(strcat(place, "/"), argv[1]);
			behind(place, tool);
		}
	} else {
		search(argv[1], tool);
	}
	return "";
}

const char *told_as(void)
{
	const char *name = base_of(tool);
	char record[PATH_MAX];
	struct stat known, named;

	if (strcmp(name, "cmake") != 0 && !is_builder(name))
		return "";
	if (strcmp(base_of(arguments[-1]), name) == 0)
		called = arguments[-1];
	/* Only of the build tools of which `buildd run` has asked the version it is known which jobserver they take. */
	if (is_builder(name) && (snprintf(record, sizeof record, "%s/" MARK "/%s", shim_folder(), name) >= (int)sizeof record ||
				 stat(record, &known) != 0 || stat(tool, &named) != 0 ||
				 known.st_ino != named.st_ino || known.st_dev != named.st_dev))
		become_tool();
	return name;
}

int is_on(const char *value, int by_default)
{
	static const char *const no[] = { "0", "false", "no", "off" };

	if (!value || !*value)
		return by_default;
	for (size_t i = 0; i < sizeof no / sizeof no[0]; i++)
		if (strcasecmp(value, no[i]) == 0)
			return 0;
	return 1;
}

int recaches(void)
{
	const char *again = getenv("BUILDD_RECACHE");

	return again && *again && !strchr("0nNfF", *again) && strcasecmp(again, "off") != 0;
}

/* By the rules of gcc and clang, which are each blind to the other's variable. */
const char *shown_colours(void)
{
	const char *terminal = getenv("TERM"), *colours = getenv("GCC_COLORS"), *none = getenv("NO_COLOR");

	if (!terminal || strcmp(terminal, "dumb") == 0 || !isatty(2))
		return NULL;
	if (strstr(base_of(tool), "clang"))
		return none && *none ? NULL : "";
	return !colours ? "" : *colours ? colours : NULL;
}

int is_sent(const char *variable)
{
	size_t length = strcspn(variable, "=");

	for (const char *name = NAMES; *name;) {
		size_t size = strcspn(name, ",");
		int prefix = name[size - 1] == '*';

		if (prefix ? length >= size - 1 && memcmp(variable, name, size - 1) == 0
			   : length == size && memcmp(variable, name, size) == 0)
			return 1;
		name += size + (name[size] == ',');
	}
	return 0;
}

/* Whether a part of a path is "." or ".."; the name of a hidden folder only begins so. */
static int has_dots(const char *path)
{
	for (const char *part = strstr(path, "/."); part; part = strstr(part + 1, "/.")) {
		const char *rest = part + 2 + (part[2] == '.');

		if (!*rest || *rest == '/')
			return 1;
	}
	return 0;
}

/* The current folder as the caller spells it: gcc writes this spelling into debug information. */
const char *current_folder(char *place)
{
	const char *spelled = getenv("PWD");
	struct stat there, here;

	if (spelled && spelled[0] == '/' && strlen(spelled) < PATH_MAX && !has_dots(spelled) &&
	    stat(spelled, &there) == 0 && stat(".", &here) == 0 && there.st_ino == here.st_ino &&
	    there.st_dev == here.st_dev)
		return spelled;
	return getcwd(place, PATH_MAX);
}
