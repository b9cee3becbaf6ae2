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

/* Put a string, with OWN in place of the folder if one is given. Returns whether the string has neither OWN nor, in a longer
   path, the folder's: `question_elsewhere` makes no question of such a string. */
static int put_moved(struct buffer *question, const char *string, const char *folder)
{
	const size_t length = folder ? strlen(folder) : 0;
	const char own = OWN, *place = string;
	int is_clear = !folder || !strchr(string, OWN);

	while (folder && (place = strstr(place, folder)) != NULL) {
		if (!is_whole(string, place, length)) {
			is_clear = 0;
			place++;
			continue;
		}
		put(question, string, (size_t)(place - string));
		put(question, &own, 1);
		string = place += length;
	}
	put(question, string, strlen(string) + 1);
	return is_clear;
}

static int put_strings(struct buffer *question, char *const *strings, uint32_t count, const char *folder)
{
	int are_clear = 1;

	put(question, &count, sizeof count);
	for (uint32_t i = 0; i < count; i++)
		are_clear &= put_moved(question, strings[i], folder);
	return are_clear;
}

static const char RUN_FOLDER[] = "BUILDD_RUN_FOLDER="; /* it changes which results are looked at, and no result */

/* What all questions of this command have in common. */
static struct {
	char code[128], spelled[PATH_MAX], real[PATH_MAX], **command, **sent;
	const char *folder; /* as the caller spells it */
	uint32_t words, variables;
	int is_known;
} asked;

/* Whether a variable may change a result. A compile that depends on the GPUs shown has no answer. */
static int counts(const char *variable)
{
	return strchr(variable, '=') && is_sent(variable) && strncmp(variable, "CUDA_VISIBLE_DEVICES=", 21) != 0;
}

static int learn(int place)
{
	int file = openat(place, "code", O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	ssize_t length = file < 0 ? -1 : read(file, asked.code, sizeof asked.code - 1);
	uint32_t size = 0;

	if (file >= 0)
		close(file);
	asked.folder = current_folder(asked.spelled);
	if (length <= 0 || !asked.folder || !getcwd(asked.real, sizeof asked.real))
		return 0;
	while (arguments[asked.words])
		asked.words++;
	for (char **variable = environ; *variable; variable++)
		size++;
	asked.command = calloc(asked.words + 1, sizeof *asked.command);
	asked.sent = calloc(size + 1, sizeof *asked.sent);
	if (!asked.command || !asked.sent)
		return 0;
	memcpy(asked.command, arguments, asked.words * sizeof *asked.command);
	asked.command[0] = tool;
	for (char **variable = environ; *variable; variable++)
		if (counts(*variable))
			asked.sent[asked.variables++] = *variable;
	qsort(asked.sent, asked.variables, sizeof *asked.sent, by_bytes);
	return asked.is_known = 1;
}

/* Take a variable out of the list of those that count. */
static void leave_out(const char *name)
{
	uint32_t kept = 0;

	for (uint32_t i = 0; i < asked.variables; i++)
		if (strncmp(asked.sent[i], name, strlen(name)) != 0)
			asked.sent[kept++] = asked.sent[i];
	asked.variables = kept;
}

int put_question(struct buffer *question, int place, const char *folder)
{
	char *code[] = { asked.code, "moved" }, *folders[2];
	int are_clear;

	if (!asked.is_known && !learn(place))
		return 0;
	if (folder) {
		if (strcmp(asked.folder, asked.real) != 0)
			return 0;
		leave_out(RUN_FOLDER);
	}
	folders[0] = (char *)asked.folder;
	folders[1] = asked.real;
	put_strings(question, code, folder ? 2 : 1, NULL);
	are_clear = put_strings(question, asked.command, asked.words, folder);
	are_clear &= put_strings(question, folders, 2, folder);
	are_clear &= put_strings(question, asked.sent, asked.variables, folder);
	return are_clear;
}
