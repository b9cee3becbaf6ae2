/* Starts a daemon for a shim that found none. Any number of shims at once start one, and all wait for that one start.

   The command is in the folder of shims, one word a line: MARK "/start". A shim does not start anything without it. After
   a start that failed, no shim tries again for a while, so that a build does not wait for each of its compiles. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "shim.h"

#define MOST_WORDS 16
#define START_MS 15000
#define POLL_MS 5
#define REST_S 600

static int read_command(char *text, size_t size, char **words)
{
	int count = 0;

	if (!read_beside("start", text, size))
		return 0;
	for (char *word; (word = strsep(&text, "\n")) && count < MOST_WORDS;)
		if (*word)
			words[count++] = word;
	words[count] = NULL;
	return count > 0;
}

/* Run the command, which returns when the daemon answers; whether it succeeded. */
static int carry_out(char **words)
{
	int status = 0, null;
	pid_t child = fork(), ended = 0;

	if (child < 0)
		return 0;
	if (child == 0) {
		setsid(); /* the end of this build is not the daemon's */
		null = open("/dev/null", O_RDWR);
		for (int stream = 0; stream < 3; stream++)
			dup2(null, stream);
		execute(words[0], words);
		_exit(127);
	}
	for (int waited = 0; waited < START_MS && (ended = waitpid(child, &status, WNOHANG)) == 0; waited += POLL_MS)
		poll(NULL, 0, POLL_MS);
	if (ended == 0) {
		kill(child, SIGKILL);
		waitpid(child, &status, 0);
	}
	return ended < 0 || (ended == child && status == 0);
}

/* Start a daemon, or wait until another shim has; whether it is worth to look for one again. `is_there` looks. */
int start_daemon(int (*is_there)(void))
{
	char text[PATH_MAX + 256], folder[PATH_MAX], path[PATH_MAX], *words[MOST_WORDS + 1];
	struct stat status;
	int lock, found;

	if (!read_command(text, sizeof text, words) || !make_runtime_folder(folder, sizeof folder) ||
	    snprintf(path, sizeof path, "%s/starting", folder) >= (int)sizeof path)
		return 0;
	lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (lock < 0 || flock(lock, LOCK_EX) != 0 || fstat(lock, &status) != 0)
		return 0;
	found = is_there(); /* started while this one waited for the lock */
	if (!found && !(status.st_size > 0 && time(NULL) - status.st_mtime < REST_S)) {
		found = carry_out(words);
		if (ftruncate(lock, 0) == 0 && !found && write(lock, "failed\n", 7) == 7)
			fprintf(stderr,
				"buildd: the daemon cannot be started (try: buildd up); compilers run without the cache\n");
	}
	close(lock);
	return found;
}

void show_figures(const char *cache)
{
	char text[PATH_MAX + 256], *words[MOST_WORDS + 5], *more[] = { "cache", "stats", "--as", (char *)cache, NULL };
	int count = 0;

	if (!read_command(text, sizeof text, words))
		return;
	while (words[count + 1])
		count++;
	memcpy(words + count, more, sizeof more); /* in place of "up" */
	forget_library();
	execute(words[0], words);
}
