/* The environments of programs that load the library of interpose.c: its entry in them, and what a cleared one lacks.

   Allocates nothing, and takes no lock: see interpose.c. Knows no program. */

#define _GNU_SOURCE
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include "preloaded.h"

#define OURS "BUILDD_" /* all of buildd's own variables begin so */
#define PRELOAD "LD_PRELOAD="
#define MOST_KEPT 64
#define KEPT_ROOM (1 << 14)

extern char **environ;

size_t count_of(char *const list[])
{
	size_t count = 0;

	while (list && list[count])
		count++;
	return count;
}

const char *value_of(char *const environment[], const char *name)
{
	size_t length = strlen(name);

	for (; environment && *environment; environment++)
		if (strncmp(*environment, name, length) == 0 && (*environment)[length] == '=')
			return *environment + length + 1;
	return NULL;
}

const char *entry_in(const char *preload, size_t *length)
{
	while (preload && *preload) {
		*length = strcspn(preload, ": ");
		if (*length > sizeof LIBRARY && preload[*length - sizeof LIBRARY] == '/' &&
		    memcmp(preload + *length - sizeof LIBRARY + 1, LIBRARY, sizeof LIBRARY - 1) == 0)
			return preload;
		preload += *length + (preload[*length] != 0);
	}
	return NULL;
}

/* ---------------------------------------------------------------- what a cleared environment lacks */

/* Copies: a program may write over the memory that its environment began in. */
static char kept_text[KEPT_ROOM], *kept[MOST_KEPT + 1];
static size_t kept_count;
static uid_t kept_for;

/* Keep NAME=VALUE, of which the value may end earlier than its text; whether there was room. */
static int keep(const char *name, const char *value, size_t length)
{
	static size_t used;
	size_t size = strlen(name);

	if (kept_count == MOST_KEPT || length >= KEPT_ROOM || used + size + length + 1 > KEPT_ROOM)
		return 0;
	kept[kept_count++] = memcpy(kept_text + used, name, size);
	memcpy(kept_text + used + size, value, length);
	used += size + length + 1;
	return 1;
}

static int is_ours(const char *variable)
{
	return strncmp(variable, OURS, sizeof OURS - 1) == 0;
}

/* All or none: without some of them, compiles would go to another store or get other keys. */
void keep_own(void)
{
	size_t length = 0;
	const char *entry = entry_in(value_of(environ, "LD_PRELOAD"), &length);
	int all = entry && keep(PRELOAD, entry, length);

	for (char **variable = environ; all && *variable; variable++)
		if (is_ours(*variable))
			all = keep("", *variable, strlen(*variable));
	kept_count = all ? kept_count : 0;
	kept_for = geteuid();
}

int is_cleared(char *const environment[])
{
	if (kept_count == 0 || value_of(environment, "LD_PRELOAD") || kept_for != geteuid())
		return 0;
	for (; environment && *environment; environment++)
		if (is_ours(*environment))
			return 0;
	return 1;
}

size_t room_to_restore(char *const environment[])
{
	return (count_of(environment) + kept_count + 1) * sizeof(char *);
}

char *const *restored(char *const environment[], char *room)
{
	size_t count = count_of(environment);
	char **all = (char **)room;

	for (size_t i = 0; i < count; i++)
		all[i] = environment[i];
	for (size_t i = 0; i < kept_count; i++)
		all[count + i] = kept[i];
	all[count + kept_count] = NULL;
	return all;
}
