/* The files of a text that gcc has preprocessed whose part of it holds a number that could be the number of its line.

   Every expansion of __LINE__ leaves the number of a line of the macro call that it stands in: as a number, in a string,
   or joined to a word or to another number. gcc writes the call's tokens from its first line on, and the next token of
   the file stands behind the call. So a file has no such expansion in it where no row of digits holds the number of a
   line from just before its own up to that of the next token. A call of a system header's macro is written in several
   parts, with a marker before each that only says whose tokens follow: their digits wait for the end of the call. The
   same holds for a _Pragma in a call, behind which the end of the call is not known.

   Knows line markers. No line of a raw string may look like one: `line_free` refuses such a text. A raw string of many
   lines takes what follows in its call far from the call's first line, so a file with a raw string counts as one that
   shows its lines. */

#define _GNU_SOURCE

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "bare_text.h"

#define SLOTS 8192 /* of the table of files: a power of 2, of which three quarters are used at most */
#define BEFORE 8   /* lines: gcc writes a token up to so many lines late before it writes a marker */
#define DIGITS 7   /* of the number of a line */
#define PARTS 256  /* of the calls in one line */
#define NO_LINE 9999999

struct file {
	const unsigned char *name;
	size_t length;
	int shows;
};

/* Text with digits, behind which the next token of its file has not come yet. */
struct part {
	const unsigned char *begin, *end;
	long line;
};

struct reader {
	struct file files[SLOTS];
	long used;
	struct file *file; /* that the text belongs to now, */
	int flags;	   /* whether it is a system header there, */
	long line;	   /* and the line; */
	long marked;	   /* the line that the last marker named, */
	int written;	   /* and whether a token has come behind it */
	struct file *owner; /* of all parts */
	struct part parts[PARTS];
	int waiting;
	int inside; /* a marker has come that may stand in the middle of a call */
};

static struct file *find(struct reader *r, const unsigned char *name, size_t length)
{
	uint32_t hash = 2166136261u;
	for (size_t n = 0; n < length; n++)
		hash = (hash ^ name[n]) * 16777619u;
	for (size_t slot = hash & (SLOTS - 1);; slot = (slot + 1) & (SLOTS - 1)) {
		struct file *file = r->files + slot;
		if (!file->name) {
			if (r->used >= SLOTS / 4 * 3)
				return NULL;
			r->used++;
			file->name = name;
			file->length = length;
			return file;
		}
		if (file->length == length && !memcmp(file->name, name, length))
			return file;
	}
}

/* Whether a row of digits between two places holds a number in a range. */
static int holds(const unsigned char *begin, const unsigned char *end, long from, long to)
{
	for (; begin < end; begin++) {
		long number = 0;
		/* A zero begins no number of a line; in the middle of a row it may still follow other digits. */
		if (*begin < '1' || *begin > '9')
			continue;
		for (int n = 0; n < DIGITS && begin + n < end && begin[n] >= '0' && begin[n] <= '9'; n++) {
			number = number * 10 + (begin[n] - '0');
			if (number > to)
				break;
			if (number >= from)
				return 1;
		}
	}
	return 0;
}

/* The next token behind the waiting parts stands in a line of their file, or is not known. */
static void settle(struct reader *r, long line)
{
	for (int n = 0; n < r->waiting && !r->owner->shows; n++) {
		struct part *part = r->parts + n;
		r->owner->shows = holds(part->begin, part->end, part->line - BEFORE, line < part->line ? NO_LINE : line);
	}
	r->waiting = 0;
}

static int has_raw_string(const unsigned char *line, const unsigned char *end)
{
	for (const unsigned char *at = line; (at = memmem(at, (size_t)(end - at), "R\"", 2)); at++)
		if (is_raw(line, at))
			return 1;
	return 0;
}

/* Reads `# 12 "name" flags`; returns 0 if a line is no marker. */
static int marker(struct reader *r, const unsigned char *at, const unsigned char *end)
{
	long number = 0;
	if (end - at < 5 || at[0] != '#' || at[1] != ' ' || at[2] < '0' || at[2] > '9')
		return 0;
	for (at += 2; at < end && *at >= '0' && *at <= '9'; at++)
		number = number * 10 + (*at - '0');
	if (end - at < 3 || at[0] != ' ' || at[1] != '"')
		return 0;
	const unsigned char *name = at += 2;
	while (at < end && *at != '"')
		at += *at == '\\' && at + 1 < end ? 2 : 1;
	if (at >= end)
		return 0;
	struct file *before = r->file;
	long line = r->line;
	int flags = 0;
	r->file = find(r, name, (size_t)(at - name));
	r->line = number;
	for (at++; at < end; at++)
		flags |= *at == '3' || *at == '4';
	if (r->file != before)
		r->inside = 0;
	else if (flags != r->flags || (number == r->marked && !r->written))
		r->inside = 1; /* gcc also writes the second marker of two with nothing between them */
	else
		r->inside = 0;
	/* Another file, or back in this one: the end of a call is not known. */
	if (r->file != before || (!r->inside && number < line))
		settle(r, NO_LINE);
	r->flags = flags;
	r->marked = number;
	r->written = 0;
	return 1;
}

/* Writes, for each file of a text, a '+' where it may show a line and a '-' where it does not, its name as in the
   markers, and a newline. Returns the length, or -1 if that is not known. `out` has room for as many bytes as the text
   and one more: a marker is longer than a name, its sign and its newline. */
long shown_lines(const unsigned char *text, size_t length, unsigned char *out)
{
	const unsigned char *at = text, *last = text + length;
	struct reader *r = calloc(1, sizeof *r);
	long made = 0;
	int sound = r != NULL;
	while (sound && at < last) {
		const unsigned char *end = memchr(at, '\n', (size_t)(last - at));
		if (!end)
			end = last;
		if (*at == '#' && end - at > 1 && at[1] == ' ') {
			sound = marker(r, at, end) && r->file;
			at = end + 1;
			continue;
		}
		const unsigned char *token = at, *digit;
		while (token < end && (*token == ' ' || *token == '\t' || *token == '\r' || *token == '\f' || *token == '\v'))
			token++;
		if (token < end) {
			if (!r->file) {
				sound = 0; /* a text begins with a marker */
				break;
			}
			if (*token == '#')
				settle(r, NO_LINE);
			else if (!r->inside || r->waiting == PARTS)
				settle(r, r->waiting == PARTS ? NO_LINE : r->line);
			r->inside = 0;
			r->written = 1;
			r->file->shows = r->file->shows || has_raw_string(token, end);
			for (digit = token; digit < end && (*digit < '0' || *digit > '9'); digit++)
				;
			if (digit < end && !r->file->shows) {
				r->owner = r->file;
				r->parts[r->waiting++] = (struct part){digit, end, r->line};
			}
		}
		r->line++;
		at = end + 1;
	}
	if (sound) {
		settle(r, NO_LINE);
		for (size_t slot = 0; slot < SLOTS; slot++) {
			struct file *file = r->files + slot;
			if (!file->name)
				continue;
			out[made++] = file->shows ? '+' : '-';
			memcpy(out + made, file->name, file->length);
			made += (long)file->length;
			out[made++] = '\n';
		}
	}
	free(r);
	return sound ? made : -1;
}
