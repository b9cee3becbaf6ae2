/* Wrappers: users' scripts in front of a compiler. A shim in front of a wrapper runs it as it would run without buildd,
   in its caller's environment and terminal, and has the compiler that it calls run under a shim (interpose.c).

   A wrapper may read any variable or file and do something else each time, which no key could cover. What it calls at
   the end has a key like every other call. The daemon tells a wrapper that is no script. Knows no command line and no
   language of scripts. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shim.h"

#define LIBRARY "libbuildd-interpose.so" /* as in interpose.c */
#define PROCESS "BUILDD_WRAPPER"	  /* the same */

/* Whether the tool is a script, other than hipcc itself, which is one in Perl. */
static int is_script(void)
{
	char head[256];
	int file = open(tool, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	ssize_t length = file < 0 ? 0 : pread(file, head, sizeof head - 1, 0);

	if (file >= 0)
		close(file);
	if (length < 2 || head[0] != '#' || head[1] != '!')
		return 0;
	head[length] = 0;
	head[strcspn(head, "\n")] = 0;
	return strcmp(strrchr(tool, '/') + 1, "hipcc") != 0 || !strstr(head, "perl");
}

/* Have the wrapper load the library; whether it will. */
static int add_library(void)
{
	const char *preload = getenv("LD_PRELOAD");
	char library[PATH_MAX + sizeof LIBRARY], *text;

	if (preload && strstr(preload, "/" LIBRARY))
		return 1;
	sprintf(library, "%s/" LIBRARY, shim_folder());
	if (!is_on(getenv("BUILDD_INTERPOSE"), 1) || access(library, R_OK) != 0)
		return 0;
	if (asprintf(&text, "%s%s%s", preload ? preload : "", preload && *preload ? " " : "", library) < 0)
		return 0;
	return setenv("LD_PRELOAD", text, 1) == 0;
}

/* A wrapper that is no script may have a compiler's name: its library must not call this shim again. */
static void note_process(void)
{
	char number[24];

	sprintf(number, "%ld", (long)getpid());
	setenv(PROCESS, number, 1);
}

void run_wrapper(void)
{
	if (!add_library())
		run_tool();
	/* A wrapper that calls a compiler by its name gets the next one on its caller's PATH, not this shim again. */
	leave_path();
	note_process();
	become_tool();
}

void look_through_wrapper(void)
{
	if (is_script() && add_library())
		run_wrapper();
}
