/* The rule of a depfile, as gcc or clang writes it: buildd/scheduling/make_rules.py makes the same, and says the sources.

   Knows no answer. */

#include <string.h>
#include <stdlib.h>

#include "shim.h"

#define MOST_COLUMNS 72
#define MOST_CLANG_COLUMNS 75

void put_own(struct buffer *text, const void *content, size_t length, const char *root)
{
	const char *at = content, *end = at + length;

	while (at < end) {
		const char *own = *root ? memchr(at, OWN, (size_t)(end - at)) : NULL;

		put(text, at, (size_t)((own ? own : end) - at));
		if (!own)
			return;
		put(text, root, strlen(root));
		at = own + 1;
	}
}

static void put_words(struct buffer *text, const char *words)
{
	put(text, words, strlen(words));
}

/* gcc counts targets and files alike. Returns the column behind the name. */
static size_t put_gcc_name(struct buffer *text, const struct buffer *name, size_t column)
{
	if (column && column + name->length > MOST_COLUMNS) {
		put_words(text, " \\\n");
		column = 0;
	}
	if (text->length) {
		put_words(text, " ");
		column++;
	}
	put(text, name->data, name->length);
	return column + name->length;
}

static size_t put_clang_target(struct buffer *text, const struct buffer *name, size_t column)
{
	int breaks = column && column + name->length + 2 > MOST_CLANG_COLUMNS;

	put_words(text, !column ? "" : breaks ? " \\\n  " : " ");
	put(text, name->data, name->length);
	return name->length + (breaks ? 2 : column + (column > 0));
}

static size_t put_clang_file(struct buffer *text, const struct buffer *name, size_t column)
{
	if (column + name->length + 3 > MOST_CLANG_COLUMNS) {
		put_words(text, " \\\n ");
		column = 2;
	}
	put_words(text, " ");
	put(text, name->data, name->length);
	return column + name->length + 1;
}

void put_rule(struct buffer *text, const struct rule *rule, const char *const *names, const char *root)
{
	size_t column = 0;

	for (uint32_t i = 0; i < rule->targets + rule->files; i++) {
		struct buffer name = { 0 };

		put_own(&name, names[i], strlen(names[i]), root);
		if (!rule->clang)
			column = put_gcc_name(text, &name, column);
		else if (i < rule->targets)
			column = put_clang_target(text, &name, column);
		else
			column = put_clang_file(text, &name, column);
		free(name.data);
		if (i + 1 == rule->targets) {
			put_words(text, ":");
			column++;
		}
	}
	put_words(text, "\n");
	for (uint32_t i = 0; rule->source < rule->files && i < rule->files; i++)
		if (i != rule->source) {
			put_own(text, names[rule->targets + i], strlen(names[rule->targets + i]), root);
			put_words(text, ":\n");
		}
}
