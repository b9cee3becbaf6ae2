/* A command with several sources, or one that compiles and links: carried out as commands with one source each, which the
   daemon has named. Each runs under a shim of its own. The compiles run side by side, but each stream has their words in
   the compiler's order; on a terminal they run one after another, because there a compiler may colour its words. Knows no
   option. */

#define _GNU_SOURCE
#include <errno.h>
#include <ftw.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shim.h"

#define MOST_COMMANDS 4096

struct part {
	char **words;
	volatile pid_t running;
	int ended, status;
	int said[2]; /* what it has written to standard output and error meanwhile; -1 where it writes there itself */
};

static struct part parts[MOST_COMMANDS];

static void pass_on(int number)
{
	for (size_t i = 0; i < MOST_COMMANDS && parts[i].words; i++)
		if (parts[i].running > 0)
			kill(parts[i].running, number);
}

static int remove_entry(const char *path, const struct stat *status, int type, struct FTW *place)
{
	(void)status, (void)type, (void)place;
	return remove(path);
}

/* Make the folders of a path, from `start` on. */
static int make_folders(char *path, size_t start)
{
	for (char *slash = path + start; (slash = strchr(slash, '/')); slash++) {
		*slash = 0;
		if (mkdir(path, 0700) != 0 && access(path, F_OK) != 0)
			return 0;
		*slash = '/';
	}
	return 1;
}

/* The words of a command behind those of the launcher, or NULL. */
static char **words_of(struct reader *reader, char *launcher)
{
	struct value list = take(reader);
	char **words;

	if (list.kind != LIST || list.number == 0 || list.number > MOST_BYTES / sizeof *words)
		return NULL;
	words = calloc(list.number + 2, sizeof *words);
	if (!words)
		return NULL;
	words[0] = launcher;
	for (uint64_t i = 0; i < list.number; i++) {
		struct value word = take(reader);

		if (word.kind != TEXT || reader->bad || !(words[i + 1] = strndup(word.text, word.length)))
			return NULL;
	}
	return words;
}

static void start(struct part *part, int aside)
{
	part->said[0] = part->said[1] = -1;
	for (int i = 0; aside && i < 2; i++)
		part->said[i] = memfd_create("buildd-said", MFD_CLOEXEC);
	part->running = fork();
	if (part->running == 0) {
		for (int i = 0; i < 2; i++)
			if (part->said[i] >= 0)
				dup2(part->said[i], i + 1);
		execute(part->words[0], part->words);
		_exit(126);
	}
	if (part->running < 0) {
		part->ended = 1;
		part->status = 126 << 8;
	}
}

/* Write down the end of the part that ends next; 0 where none runs. */
static int wait_for_one(size_t count)
{
	int status;
	pid_t ended;

	while ((ended = waitpid(-1, &status, 0)) < 0)
		if (errno != EINTR)
			return 0;
	for (size_t i = 0; i < count; i++)
		if (parts[i].running == ended) {
			parts[i].running = 0;
			parts[i].ended = 1;
			parts[i].status = status;
		}
	return 1;
}

static void tell(struct part *part, int is_told)
{
	for (int i = 0; i < 2; i++) {
		unsigned char piece[4096];
		ssize_t length;
		off_t at = 0;

		if (part->said[i] < 0)
			continue;
		while (is_told && (length = pread(part->said[i], piece, sizeof piece, at)) > 0) {
			write_all(i + 1, piece, (size_t)length);
			at += length;
		}
		close(part->said[i]);
	}
}

static size_t processors(void)
{
	cpu_set_t set;

	return sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0 ? (size_t)CPU_COUNT(&set) : 1;
}

/* Run the first parts; returns the status of the first that failed, in their order. */
static int compile(size_t count, size_t most, int keeps_going)
{
	size_t begun = 0, told = 0;
	int first = 0, stopped = 0;

	while (told < count && (begun > told || !stopped)) {
		while (!stopped && begun < count && begun - told < most) {
			start(&parts[begun], begun > told);
			begun++;
		}
		if (!parts[told].ended && !wait_for_one(begun))
			break;
		for (; told < begun && parts[told].ended; told++) {
			tell(&parts[told], !stopped);
			first = first ? first : parts[told].status;
			stopped = stopped || WIFSIGNALED(parts[told].status) || (first && !keeps_going);
		}
		if (stopped)
			pass_on(SIGTERM); /* the compiler would not have begun with these */
	}
	return first;
}

void run_parts(struct reader reader, struct value folder, int keeps_going)
{
	static const int signals[] = { SIGINT, SIGTERM, SIGHUP };
	char place[PATH_MAX], launcher[PATH_MAX + sizeof "/buildd-cc"];
	struct value list = take(&reader);
	struct sigaction forward = { .sa_handler = pass_on };
	size_t count;
	int first, links;

	sprintf(launcher, "%s/buildd-cc", shim_folder());
	if (list.kind != LIST || list.number > MOST_COMMANDS || folder.length >= sizeof place)
		run_tool();
	for (uint64_t i = 0; i < list.number; i++)
		if (!(parts[i].words = words_of(&reader, launcher)))
			run_tool();
	if (folder.length > 0)
		memcpy(place, folder.text, folder.length);
	place[folder.length] = 0;
	links = place[0] != 0;
	if (links && mkdir(place, 0700) != 0)
		run_tool();
	count = list.number - (size_t)(links && list.number > 0);
	for (size_t i = 0; links && i < count; i++)
		for (char **word = parts[i].words; *word; word++)
			if (strncmp(*word, place, folder.length) == 0 && !make_folders(*word, folder.length + 1)) {
				nftw(place, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
				run_tool();
			}
	for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++)
		sigaction(signals[i], &forward, NULL);
	/* A compiler that ends at the first mistake leaves no object of a later source, but of those that are removed. */
	first = compile(count, (keeps_going || links) && !isatty(2) ? processors() : 1, keeps_going);
	if (links && !first) {
		start(&parts[count], 0);
		while (!parts[count].ended && wait_for_one(count + 1))
			;
		first = parts[count].status;
	}
	if (links)
		nftw(place, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
	end_as((uint64_t)WEXITSTATUS(first), WIFSIGNALED(first) ? (uint64_t)WTERMSIG(first) : 0);
}
