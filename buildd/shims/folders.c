/* The folders of shims: where this one lies, what stands beside it, which others there are, and the environment that leads
   to them.

   Knows no command. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
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

int read_beside(const char *name, char *text, size_t size)
{
	char path[PATH_MAX];
	struct stat status;
	ssize_t length;
	int file;

	if (snprintf(path, sizeof path, "%s/" MARK "/%s", shim_folder(), name) >= (int)sizeof path)
		return 0;
	file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (file < 0)
		return 0;
	length = read(file, text, size - 1);
	if (fstat(file, &status) != 0 || (status.st_uid != geteuid() && status.st_uid != 0) || status.st_mode & 022)
		length = 0;
	close(file);
	text[length > 0 ? length : 0] = 0;
	return length > 0;
}

void learn_place(void)
{
	static const char *const names[] = { "BUILDD_DIR", "BUILDD_RUNTIME_DIR" };
	const char *store = getenv(names[0]), *runtime = getenv(names[1]);
	char text[2 * PATH_MAX + 64], *rest = text;

	if ((store && *store) || (runtime && *runtime) || !read_beside("place", text, sizeof text))
		return;
	for (char *line, *value; (line = strsep(&rest, "\n")) && (value = strchr(line, '='));) {
		*value++ = 0;
		for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
			if (strcmp(line, names[i]) == 0 && *value == '/')
				setenv(names[i], value, 1);
	}
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
