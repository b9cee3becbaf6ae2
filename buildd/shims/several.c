/* A command with several sources, or one that compiles and links: carried out as commands with one source each, which the
   daemon has named. Each runs under a shim of its own. Knows no option. */

#define _GNU_SOURCE
#include <ftw.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shim.h"

#define MOST_COMMANDS 4096

static volatile pid_t running;

static void pass_on(int number)
{
	if (running > 0)
		kill(running, number);
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

static int carry_out(char **words)
{
	int status = 0;

	running = fork();
	if (running == 0) {
		execv(words[0], words);
		_exit(126);
	}
	while (running > 0 && waitpid(running, &status, 0) < 0)
		;
	return running < 0 ? 126 << 8 : status;
}

void run_parts(struct reader reader, struct value folder, int keeps_going)
{
	static const int signals[] = { SIGINT, SIGTERM, SIGHUP };
	char place[PATH_MAX], launcher[PATH_MAX + sizeof "/buildd-cc"], **commands[MOST_COMMANDS];
	struct value list = take(&reader);
	struct sigaction forward = { .sa_handler = pass_on };
	int first = 0, links;

	sprintf(launcher, "%s/buildd-cc", shim_folder());
	if (list.kind != LIST || list.number > MOST_COMMANDS || folder.length >= sizeof place)
		run_tool();
	for (uint64_t i = 0; i < list.number; i++)
		if (!(commands[i] = words_of(&reader, launcher)))
			run_tool();
	if (folder.length > 0)
		memcpy(place, folder.text, folder.length);
	place[folder.length] = 0;
	links = place[0] != 0;
	if (links && mkdir(place, 0700) != 0)
		run_tool();
	for (uint64_t i = 0; links && i + 1 < list.number; i++)
		for (char **word = commands[i]; *word; word++)
			if (strncmp(*word, place, folder.length) == 0 && !make_folders(*word, folder.length + 1)) {
				nftw(place, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
				run_tool();
			}
	for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++)
		sigaction(signals[i], &forward, NULL);
	for (uint64_t i = 0; i < list.number; i++) {
		int status = 0;

		if (!first || (keeps_going && !WIFSIGNALED(first) && !(links && i + 1 == list.number)))
			status = carry_out(commands[i]);
		first = first ? first : status;
	}
	if (links)
		nftw(place, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
	end_as((uint64_t)WEXITSTATUS(first), WIFSIGNALED(first) ? (uint64_t)WTERMSIG(first) : 0);
}
