/* The question that an answer is known by: all that the daemon would be asked, apart from what changes no result, and
   which version of buildd wrote the answers.

   Knows the form that buildd/store/answer_questions.py gives it, and nothing of what a command line means. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shim.h"

#define BEFORE "=:,;\"' "
#define BEHIND "/=:,;\"' "

extern char **environ;

/* Options that a path may follow in one word. */
static const char *const OPTIONS[] = { "-I", "-L", "-B", "-o", "-isystem", "-iquote", "-idirafter", "-include", "-imacros",
				       "-MF", "-MT", "-MQ", NULL };

static int by_bytes(const void *one, const void *other)
{
	return strcmp(*(char *const *)one, *(char *const *)other);
}

/* Whether a path may begin at this place of a word, and end there. A longer path that has the folder's in it does not. */
static int is_whole(const char *word, const char *place, size_t length)
{
	if (place[length] && !strchr(BEHIND, place[length]))
		return 0;
	if (place == word || strchr(BEFORE, place[-1]))
		return 1;
	for (int i = 0; OPTIONS[i]; i++)
		if (strlen(OPTIONS[i]) == (size_t)(place - word) && memcmp(word, OPTIONS[i], strlen(OPTIONS[i])) == 0)
			return 1;
	return 0;
}

/* Put a string, with OWN in place of the folder if one is given. */
static void put_moved(struct buffer *question, const char *string, const char *folder)
{
	const size_t length = folder ? strlen(folder) : 0;
	const char own = OWN, *place = string;

	while (folder && (place = strstr(place, folder)) != NULL) {
		if (!is_whole(string, place, length)) {
			place++;
			continue;
		}
		put(question, string, (size_t)(place - string));
		put(question, &own, 1);
		string = place += length;
	}
	put(question, string, strlen(string) + 1);
}

static void put_strings(struct buffer *question, char *const *strings, uint32_t count, const char *folder)
{
	put(question, &count, sizeof count);
	for (uint32_t i = 0; i < count; i++)
		put_moved(question, strings[i], folder);
}

/* Whether a variable changes a result. A compile that depends on the GPUs shown has no answer. */
static int counts(const char *variable, int is_moved)
{
	if (!strchr(variable, '=') || !is_sent(variable) || strncmp(variable, "CUDA_VISIBLE_DEVICES=", 21) == 0)
		return 0;
	return !is_moved || strncmp(variable, "BUILDD_RUN_FOLDER=", 18) != 0;
}

int put_question(struct buffer *question, int place, const char *folder)
{
	char spelled[PATH_MAX], real[PATH_MAX], by[128], *folders[2], *code[] = { by, "moved" }, **sent, **command;
	int file = openat(place, "code", O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	ssize_t length = file < 0 ? -1 : read(file, by, sizeof by - 1);
	uint32_t count = 0, size = 0;

	if (file >= 0)
		close(file);
	folders[0] = (char *)current_folder(spelled);
	folders[1] = getcwd(real, sizeof real);
	if (length <= 0 || !folders[0] || !folders[1] || (folder && strcmp(folders[0], folders[1]) != 0))
		return 0;
	by[length] = 0;
	while (arguments[count])
		count++;
	command = calloc(count + 1, sizeof *command);
	for (char **variable = environ; *variable; variable++)
		size++;
	sent = calloc(size + 1, sizeof *sent);
	if (!command || !sent)
		return 0;
	memcpy(command, arguments, count * sizeof *command);
	command[0] = tool;
	size = 0;
	for (char **variable = environ; *variable; variable++)
		if (counts(*variable, folder != NULL))
			sent[size++] = *variable;
	qsort(sent, size, sizeof *sent, by_bytes);
	put_strings(question, code, folder ? 2 : 1, NULL);
	put_strings(question, command, count, folder);
	put_strings(question, folders, 2, folder);
	put_strings(question, sent, size, folder);
	free(command);
	free(sent);
	return 1;
}
