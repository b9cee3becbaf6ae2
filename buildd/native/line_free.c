/* Preprocessed texts without line numbers, and the files that they enter: what line_free_text.py and entered_files.py
   say in Python, to the byte, for texts of megabytes.

   Knows gcc's line markers, and the words by which a text can read its own line numbers. */

#define _GNU_SOURCE

#include <stdlib.h>
#include <string.h>

#include "bare_text.h"

#define DIGITS 15    /* of a line's number */
#define DELIMITER 16 /* of a raw string: its longest */

enum { SEES_LINES = -1, NO_MEMORY = -2 };

struct span {
	const unsigned char *begin, *end;
};

static int is_blank(unsigned char c)
{
	return c == ' ' || (c >= '\t' && c <= '\r');
}

static int is_word(unsigned char c)
{
	return c == '_' || (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z');
}

static struct span stripped(struct span s)
{
	while (s.begin < s.end && is_blank(*s.begin))
		s.begin++;
	while (s.begin < s.end && is_blank(s.end[-1]))
		s.end--;
	return s;
}

static int is_same(struct span a, struct span b)
{
	return a.end - a.begin == b.end - b.begin && !memcmp(a.begin, b.begin, (size_t)(a.end - a.begin));
}

static int has(const unsigned char *text, size_t length, const char *word)
{
	return memmem(text, length, word, strlen(word)) != NULL;
}

int is_raw(const unsigned char *text, const unsigned char *r)
{
	const unsigned char *word = r;

	while (word > text && is_word(word[-1]))
		word--;
	switch (r - word) {
	case 0:
		return 1;
	case 1:
		return *word == 'u' || *word == 'U' || *word == 'L';
	case 2:
		return word[0] == 'u' && word[1] == '8';
	}
	return 0;
}

static int sees_lines(const unsigned char *text, size_t length)
{
	return has(text, length, "__builtin_LINE") || has(text, length, "__LINE__") ||
	       has(text, length, "__builtin_COLUMN") || has(text, length, "source_location");
}

/* Where the next line begins that may be a marker, behind a newline; the end if there is none. */
static const unsigned char *next_marker(const unsigned char *at, const unsigned char *end)
{
	const unsigned char *found = memmem(at, (size_t)(end - at), "\n# ", 3);

	return found ? found : end;
}

struct writer {
	unsigned char *out, *at;
};

static void put(struct writer *w, const void *text, size_t length)
{
	memcpy(w->at, text, length);
	w->at += length;
}

/* Begin one more piece: pieces are joined by newlines. */
static void begin(struct writer *w)
{
	if (w->at > w->out)
		*w->at++ = '\n';
}

/* Write a text with one newline in place of several; returns how many it had. */
static long put_text(struct writer *w, struct span s)
{
	long lines = 0;

	while (s.begin < s.end) {
		const unsigned char *line = memchr(s.begin, '\n', (size_t)(s.end - s.begin));
		const unsigned char *to = line ? line + 1 : s.end;

		put(w, s.begin, (size_t)(to - s.begin));
		for (s.begin = to; line; s.begin++) {
			lines++;
			if (s.begin == s.end || *s.begin != '\n')
				break;
		}
	}
	return lines;
}

/* The next raw string from a place on: its R, or NULL. */
static const unsigned char *next_raw(const unsigned char *text, const unsigned char *at, const unsigned char *end)
{
	while (at < end && (at = memmem(at, (size_t)(end - at), "R\"", 2)) && !is_raw(text, at))
		at++;
	return at < end ? at : NULL;
}

/* What stands between the parentheses of a raw string, from behind its first quotation mark on; moves that to behind
   its last one. Without a begin if it is not sure that this is its end. */
static struct span content_of(const unsigned char **string, const unsigned char *end)
{
	unsigned char last[DELIMITER + 2] = ")";
	size_t length = 1;
	const unsigned char *at = *string, *found;

	for (; at < end && *at != '('; at++) {
		if (length > DELIMITER || memchr(" )\\\t\v\f\n\"", *at, 8))
			return (struct span){NULL, NULL};
		last[length++] = *at;
	}
	if (at++ == end)
		return (struct span){NULL, NULL};
	last[length++] = '"';
	found = memmem(at, (size_t)(end - at), last, length);
	*string = found ? found + length : end;
	return (struct span){found ? at : NULL, found};
}

/* Write a text with a mark behind each newline in a raw string, where no line may be left out; at most twice as long.
   Returns the length, or SEES_LINES where a string may have another end, or a line that looks like a marker. */
static long mark_raw_strings(const unsigned char *text, size_t length, unsigned char *out)
{
	const unsigned char *end = text + length, *begin = text, *at;
	struct writer w = {out, out};

	while ((at = next_raw(text, begin, end))) {
		const unsigned char *behind = at + 2;
		struct span content = content_of(&behind, end);

		if (!content.begin || next_raw(text, content.begin, content.end) ||
		    next_marker(content.begin, content.end) < content.end)
			return SEES_LINES;
		put(&w, begin, (size_t)(content.begin - begin));
		for (; content.begin < content.end; content.begin++) {
			*w.at++ = *content.begin;
			if (*content.begin == '\n')
				*w.at++ = 1;
		}
		put(&w, content.end, (size_t)(behind - content.end));
		begin = behind;
	}
	put(&w, begin, (size_t)(end - begin));
	return w.at - w.out;
}

struct marker {
	long number;
	struct span name, flags; /* the name with its first quotation mark */
};

static int read_marker(struct span line, struct marker *m)
{
	const unsigned char *at = line.begin;

	for (m->number = 0; at < line.end && *at >= '0' && *at <= '9'; at++) {
		if (at - line.begin == DIGITS)
			return 0;
		m->number = m->number * 10 + (*at - '0');
	}
	if (at == line.begin || line.end - at < 2 || at[0] != ' ' || at[1] != '"')
		return 0;
	m->name.begin = at + 1;
	m->name.end = memrchr(at, '"', (size_t)(line.end - at));
	m->flags = (struct span){m->name.end + 1, line.end};
	return 1;
}

/* Write a file's name and how it is read: flags 1 and 2 only say that it begins or goes on. Returns the length. */
static size_t put_place(unsigned char *out, const struct marker *m)
{
	struct writer w = {out, out};
	int first = 1;

	put(&w, m->name.begin, (size_t)(m->name.end - m->name.begin));
	*w.at++ = '"';
	for (struct span flag = stripped(m->flags); flag.begin < flag.end;) {
		struct span rest = flag;

		while (flag.end > flag.begin && rest.begin < flag.end && !is_blank(*rest.begin))
			rest.begin++;
		flag.end = rest.begin;
		if (flag.end - flag.begin != 1 || (*flag.begin != '1' && *flag.begin != '2')) {
			if (!first)
				*w.at++ = ' ';
			first = 0;
			put(&w, flag.begin, (size_t)(flag.end - flag.begin));
		}
		flag = stripped(rest);
	}
	return (size_t)(w.at - out);
}

static long without_lines(const unsigned char *text, size_t length, unsigned char *out)
{
	const unsigned char *end = text + length, *at = next_marker(text, end);
	struct writer w = {out, out};
	struct span first = {text, at}, file = {text, text};
	unsigned char *place, *other;
	size_t place_length = 0;
	long last = -1, result = SEES_LINES;

	place = malloc(length + 1);
	other = malloc(length + 1);
	if (!place || !other) {
		result = NO_MEMORY;
		goto done;
	}
	if (stripped(first).begin < first.end) {
		while (*first.begin == '\n')
			first.begin++;
		while (first.end[-1] == '\n')
			first.end--;
		put_text(&w, first);
	}
	while (at < end) {
		struct span piece = {at + 3, next_marker(at + 3, end)}, line = piece, core;
		struct marker m;
		size_t other_length;
		const unsigned char *newline = memchr(piece.begin, '\n', (size_t)(piece.end - piece.begin));

		at = piece.end;
		line.end = newline ? newline : piece.end;
		if (!read_marker(line, &m))
			goto done;
		piece.begin = newline ? newline + 1 : piece.end;
		core = stripped(piece);
		if (core.begin == core.end)
			continue;
		for (const unsigned char *c = piece.begin; c < core.begin; c++)
			m.number += *c == '\n';
		other_length = put_place(other, &m);
		if (other_length != place_length || memcmp(other, place, place_length)) {
			unsigned char *swap = place;

			place = other;
			other = swap;
			place_length = other_length;
			begin(&w);
			put(&w, "# ", 2);
			put(&w, place, place_length);
		}
		if (m.number == last && is_same(m.name, file)) {
			begin(&w);
			put(&w, "# same line", 11);
		}
		file = m.name;
		begin(&w);
		last = m.number + put_text(&w, core);
	}
	result = w.at - w.out;
done:
	free(place);
	free(other);
	return result;
}

/* Write a part of a preprocessed text, which begins with the newline before a marker, without its line numbers; at most
   three times as long. Returns the length, or a negative number: SEES_LINES, NO_MEMORY. */
long line_free(const unsigned char *text, size_t length, unsigned char *out)
{
	unsigned char *copy;
	long result;

	if (sees_lines(text, length))
		return SEES_LINES;
	if (!next_raw(text, text, text + length))
		return without_lines(text, length, out);
	copy = malloc(2 * length);
	if (!copy)
		return NO_MEMORY;
	result = mark_raw_strings(text, length, copy);
	if (result >= 0)
		result = without_lines(copy, (size_t)result, out);
	free(copy);
	return result;
}

/* Write the lines of a text that may enter a file, each with a newline; returns the length. */
long entering(const unsigned char *text, size_t length, unsigned char *out)
{
	const unsigned char *end = text + length, *line = text;
	struct writer w = {out, out};

	while (line < end) {
		const unsigned char *newline = memchr(line, '\n', (size_t)(end - line));
		const unsigned char *to = newline ? newline : end;

		if (to - line > 4 && line[0] == '#' && line[1] == ' ' &&
		    memmem(line, (size_t)(to - line), "\" 1", 3)) {
			put(&w, line, (size_t)(to - line));
			*w.at++ = '\n';
		}
		line = newline ? newline + 1 : end;
	}
	return w.at - w.out;
}
