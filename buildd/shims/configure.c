/* Under the name cmake: lets cmake find the user's own compilers, and call them through buildd-cc.

   cmake writes the path of each compiler that it finds on PATH into the tree. Shims are no compilers to it, but a launcher
   before them. The tree is noted, for those who remove the launcher. A tree that is there already keeps its
   commands, and so everything that it has built. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "program_name.h"
#include "shim.h"

#define MOST_NOTED (1 << 20)

/* The folder of the tree: that of -B, a tree that is named, else the current one. */
static const char *tree(void)
{
	for (char **argument = arguments + 1; *argument; argument++) {
		char cache[PATH_MAX];

		if (strcmp(*argument, "-B") == 0)
			return argument[1] ? argument[1] : "";
		if (strncmp(*argument, "-B", 2) == 0)
			return *argument + 2;
		if (**argument != '-' && snprintf(cache, sizeof cache, "%s/CMakeCache.txt", *argument) < PATH_MAX &&
		    access(cache, F_OK) == 0)
			return *argument;
	}
	return "";
}

/* Whether the tree has to stay as it is: the library of interpose.c takes its compiles, and it may have been configured
   without a launcher. With one, all that it has compiled would be compiled again. */
static int is_left_alone(void)
{
	const char *named = tree();
	char cache[PATH_MAX];

	if (!loads_library())
		return 0;
	for (char **argument = arguments + 1; *argument; argument++)
		if (strncmp(*argument, "--preset", 8) == 0)
			return 1; /* the preset knows the tree */
	return snprintf(cache, sizeof cache, "%s%sCMakeCache.txt", named, *named ? "/" : "") < (int)sizeof cache &&
	       access(cache, F_OK) == 0;
}

/* Add the tree to the list beside the file that says how a daemon is started. */
static void note_tree(void)
{
	char link[PATH_MAX], place[PATH_MAX], here[PATH_MAX], line[2 * PATH_MAX];
	const char *named = tree();
	struct stat status;
	ssize_t length;
	int file;

	if (snprintf(link, sizeof link, "%s/" MARK "/start", shim_folder()) >= (int)sizeof link)
		return;
	length = readlink(link, place, sizeof place - 8);
	if (length <= 0 || !getcwd(here, sizeof here))
		return;
	place[length] = 0;
	if (place[0] != '/')
		return;
	strcpy(strrchr(place, '/'), "/trees");
	length = named[0] == '/' ? snprintf(line, sizeof line, "%s\n", named)
				 : snprintf(line, sizeof line, "%s/%s\n", here, named);
	file = open(place, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (file < 0)
		return;
	if (length < (ssize_t)sizeof line && fstat(file, &status) == 0 && status.st_size < MOST_NOTED)
		write_all(file, (const unsigned char *)line, (size_t)length);
	close(file);
}

void prepare_configure(void)
{
	static const char *const launchers[] = { "CMAKE_C_COMPILER_LAUNCHER", "CMAKE_CXX_COMPILER_LAUNCHER",
						 "CMAKE_CUDA_COMPILER_LAUNCHER" };
	char launcher[PATH_MAX];

	if (!configures(arguments + 1) || is_left_alone() || snprintf(launcher, sizeof launcher, "%s/buildd-cc", shim_folder()) >= PATH_MAX)
		return;
	leave_path();
	for (size_t i = 0; i < sizeof launchers / sizeof launchers[0]; i++) {
		const char *given = getenv(launchers[i]);

		if (!given || !*given)
			setenv(launchers[i], launcher, 1);
	}
	note_tree();
}
