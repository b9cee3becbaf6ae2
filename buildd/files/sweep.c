/* Stamps of many files at once, without Python between them. Knows no record and no store: see sweep.py. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../shims/shim.h"

#define FIELDS 5
#define MOST_THREADS 8
#define OPEN_FOLDERS 8

struct slice {
	const char *paths;       /* of this slice, each with its final zero */
	uint64_t count;
	const int64_t *expected; /* may be NULL */
	int64_t *found;          /* may be NULL */
	atomic_int *differs;
};

/* The folders used last. A look-up from an open folder walks one name instead of the whole path: a third of the
   time. */
struct folders {
	const char *names[OPEN_FOLDERS];
	size_t lengths[OPEN_FOLDERS];
	int descriptors[OPEN_FOLDERS];
	unsigned count, next;
};

static int seen(int place, const char *path, struct stat *status)
{
	if (fstatat(place, path, status, 0) != 0)
		return -1;
	see_by_opening(place, path, status);
	return 0;
}

static int look(struct folders *folders, const char *path, struct stat *status)
{
	const char *slash = strrchr(path, '/');
	size_t length = slash ? (size_t)(slash - path) : 0;
	char name[4096];
	unsigned i;

	if (length == 0 || length >= sizeof name)
		return seen(AT_FDCWD, path, status);
	for (i = 0; i < folders->count; i++)
		if (folders->lengths[i] == length && memcmp(folders->names[i], path, length) == 0)
			break;
	if (i == folders->count) {
		int descriptor;

		memcpy(name, path, length);
		name[length] = 0;
		descriptor = open(name, O_PATH | O_DIRECTORY | O_CLOEXEC);
		if (descriptor < 0)
			return seen(AT_FDCWD, path, status);
		if (folders->count < OPEN_FOLDERS) {
			folders->count++;
		} else {
			i = folders->next++ % OPEN_FOLDERS;
			close(folders->descriptors[i]);
		}
		folders->names[i] = path;
		folders->lengths[i] = length;
		folders->descriptors[i] = descriptor;
	}
	return seen(folders->descriptors[i], slash + 1, status);
}

/* As os.stat gives them, modulo 2^64; zeros if it is not a regular file. */
static void stamp(struct folders *folders, const char *path, int64_t *numbers)
{
	struct stat status;

	if (look(folders, path, &status) != 0 || !S_ISREG(status.st_mode)) {
		memset(numbers, 0, FIELDS * sizeof *numbers);
		return;
	}
	numbers[0] = (int64_t)status.st_dev;
	numbers[1] = (int64_t)status.st_ino;
	numbers[2] = (int64_t)status.st_size;
	numbers[3] = (int64_t)((uint64_t)status.st_mtim.tv_sec * 1000000000u + (uint64_t)status.st_mtim.tv_nsec);
	numbers[4] = (int64_t)((uint64_t)status.st_ctim.tv_sec * 1000000000u + (uint64_t)status.st_ctim.tv_nsec);
}

static void *sweep(void *argument)
{
	struct slice *slice = argument;
	const char *path = slice->paths;
	struct folders folders = { .count = 0 };
	int64_t numbers[FIELDS];

	for (uint64_t i = 0; i < slice->count; i++) {
		stamp(&folders, path, numbers);
		if (slice->found)
			memcpy(slice->found + i * FIELDS, numbers, sizeof numbers);
		if (slice->expected) {
			if (memcmp(slice->expected + i * FIELDS, numbers, sizeof numbers) != 0)
				atomic_store_explicit(slice->differs, 1, memory_order_relaxed);
			if (atomic_load_explicit(slice->differs, memory_order_relaxed))
				break;
		}
		path += strlen(path) + 1;
	}
	for (unsigned i = 0; i < folders.count; i++)
		close(folders.descriptors[i]);
	return NULL;
}

/* Whether all stamps are as expected; stops at the first difference. Without `expected` it takes all stamps. */
int buildd_sweep(const char *paths, uint64_t count, const int64_t *expected, int64_t *found, unsigned threads)
{
	struct slice slices[MOST_THREADS];
	pthread_t running[MOST_THREADS];
	int started[MOST_THREADS] = { 0 };
	atomic_int differs = 0;

	if (threads < 1)
		threads = 1;
	if (threads > MOST_THREADS)
		threads = MOST_THREADS;
	for (unsigned t = 0; t < threads; t++) {
		uint64_t first = count * t / threads, end = count * (t + 1) / threads;

		slices[t] = (struct slice){ paths, end - first, expected ? expected + first * FIELDS : NULL,
					    found ? found + first * FIELDS : NULL, &differs };
		for (uint64_t i = first; i < end && t + 1 < threads; i++)
			paths += strlen(paths) + 1;
		if (t + 1 < threads)
			started[t] = pthread_create(&running[t], NULL, sweep, &slices[t]) == 0;
		if (!started[t])
			sweep(&slices[t]);
	}
	for (unsigned t = 0; t < threads; t++)
		if (started[t])
			pthread_join(running[t], NULL);
	return !atomic_load(&differs);
}
