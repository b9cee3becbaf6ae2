/* The folders of shims: where this one lies, which others there are, and the environment that leads to them.

   Knows no command. */

#define _GNU_SOURCE
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shim.h"

#define GONE " (deleted)"
#define LIBRARY "libbuildd-interpose.so" /* as in interpose.c */

const char *own_path(void)
{
	static char self[PATH_MAX];

	char *end;

	if (!self[0] && readlink("/proc/self/exe", self, sizeof self - 1) < 0)
		self[0] = 0;
	/* Another buildd of the user's may just have put its own program there. */
	if ((end = strstr(self, GONE)) && !end[sizeof GONE - 1])
		*end = 0;
	return self;
}

const char *shim_folder(void)
{
	static char folder[PATH_MAX];
	const char *slash = strrchr(own_path(), '/');

	snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - own_path()) : 0, own_path());
	return folder;
}

int is_ours(const char *folder)
{
	char mark[PATH_MAX];

	return snprintf(mark, sizeof mark, "%s/" MARK, folder) < (int)sizeof mark && access(mark, F_OK) == 0;
}

/* Take the folders of shims off PATH; an empty folder on it stays, and is the current one. */
void leave_path(void)
{
	const char *path = getenv("PATH");
	char *kept = path ? malloc(strlen(path) + 1) : NULL, *end = kept;

	for (; kept;) {
		size_t length = strcspn(path, ":");
		char folder[PATH_MAX];

		if (snprintf(folder, sizeof folder, "%.*s", (int)length, path) >= (int)sizeof folder || !is_ours(folder)) {
			memcpy(end, path, length + 1);
			end += length + 1;
		}
		if (!path[length])
			break;
		path += length + 1;
	}
	if (!kept || end == kept)
		return;
	end[-1] = 0;
	setenv("PATH", kept, 1);
	free(kept);
}

int loads_library(void)
{
	const char *preload = getenv("LD_PRELOAD");

	return preload && strstr(preload, "/" LIBRARY) != NULL;
}

/* Take the library of interpose.c out of LD_PRELOAD: it is no part of the command. */
void forget_library(void)
{
	static const char name[] = "/" LIBRARY;
	const char *preload = getenv("LD_PRELOAD");
	char *kept = preload ? calloc(1, strlen(preload) + 2) : NULL;

	if (!kept || !strstr(preload, name))
		return;
	while (*preload) {
		size_t length = strcspn(preload, ": "), size = sizeof name - 1;

		if (length > 0 && (length < size || memcmp(preload + length - size, name, size) != 0)) {
			if (*kept)
				strcat(kept, ":");
			strncat(kept, preload, length);
		}
		preload += length + (preload[length] != 0);
	}
	if (*kept)
		setenv("LD_PRELOAD", kept, 1);
	else
		unsetenv("LD_PRELOAD");
}
