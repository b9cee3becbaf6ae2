/* Linked into a program: as on NFS, `fstatat` tells of the file OLD_NAME what it was some seconds ago (OLD_STAMP), until it is opened. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>

static int is_opened;

static int is_it(const char *path)
{
	const char *name = getenv("OLD_NAME"), *slash = strrchr(path, '/');

	return name && strcmp(slash ? slash + 1 : path, name) == 0;
}

int fstatat(int place, const char *path, struct stat *status, int flags)
{
	int (*usual)(int, const char *, struct stat *, int) = dlsym(RTLD_NEXT, "fstatat");
	int result = usual(place, path, status, flags);
	unsigned long inode, size, mtime, ctime;

	if (result == 0 && !is_opened && is_it(path) &&
	    sscanf(getenv("OLD_STAMP"), "%lu %lu %lu %lu", &inode, &size, &mtime, &ctime) == 4) {
		status->st_ino = inode;
		status->st_size = (off_t)size;
		status->st_mtim = (struct timespec){ (time_t)(mtime / 1000000000), (long)(mtime % 1000000000) };
		status->st_ctim = (struct timespec){ (time_t)(ctime / 1000000000), (long)(ctime % 1000000000) };
	}
	return result;
}

int openat(int place, const char *path, int flags, ...)
{
	int (*usual)(int, const char *, int, ...) = dlsym(RTLD_NEXT, "openat");
	va_list more;
	int mode;

	va_start(more, flags);
	mode = va_arg(more, int);
	va_end(more);
	is_opened |= is_it(path);
	return usual(place, path, flags, mode);
}

int fstatfs(int descriptor, struct statfs *system)
{
	int (*usual)(int, struct statfs *) = dlsym(RTLD_NEXT, "fstatfs");
	int result = usual(descriptor, system);

	system->f_type = 0x6969;
	return result;
}
