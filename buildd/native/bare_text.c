/* The text of a C or C++ source as translation phase 3 leaves it: every comment as blanks, or gone where nothing follows it.

   Knows tokens as gcc and clang read them in C++14 and later; knows no macro. Where the two could differ, or where the
   text would have to be read in a rarer way (trigraphs, a comment inside <>, a backslash and newline inside a token),
   the text has no bare form: the caller then compares the content itself. C from C99 on and older C++ read a text in
   the same way, unless it has raw strings or quotation marks in numbers: the form of such a text ends with VERSIONED.

   Two texts with the same bare form have the same tokens, with the same white space between them, in the same columns
   of the same lines. `drop_lines` leaves out the lines without a token: then they may stand in other lines.

   A comment that a warning reads stays as it is: one that may announce a fall-through, that holds the beginning of
   another one or a backslash before a newline, or that is not ASCII.

   Sources: ISO C++ [lex.phases], [lex.header], [lex.string]; gcc's libcpp/lex.cc. */

#define _GNU_SOURCE
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "bare_text.h"

#define IN_COMMENT 1 /* in place of a newline in a comment, */
#define IN_LITERAL 2 /* in a raw string, */
#define SPLICED 3    /* and behind a backslash */
#define VERSIONED 4  /* at the end: the text has a raw string or a number like 1'0 */
#define BEGINS 5     /* in place of the first character of a line, if a comment has it */
#define UNINDENTED 6 /* before a line, without the others: a comment between it and the one before is less indented */
#define OPEN_END 7   /* at the end: the last line has no newline */

enum { BLANK = 1, WORD = 2, DIGIT = 4, BAD = 8 };
enum expected { NOTHING, DIRECTIVE, OPENING, HEADER };

struct state {
	const unsigned char *text;
	size_t length, at;
	unsigned char *out;
	size_t made, kept; /* bytes written; those that are no blanks at the end of a line */
	size_t behind;	   /* where the text goes on behind the last spliced newline, */
	size_t commented;  /* and behind the last comment in slashes and stars */
	int token, directive, versioned;
	enum expected expected;
};

static const unsigned char kinds[256] = {
	[0 ... 8] = BAD,	[14 ... 31] = BAD,	 [0x7f] = BAD,
	['\t'] = BLANK,		['\v'] = BLANK,		 ['\f'] = BLANK,
	['\r'] = BLANK,		[' '] = BLANK,		 ['0' ... '9'] = WORD | DIGIT,
	['A' ... 'Z'] = WORD,	['a' ... 'z'] = WORD,	 ['_'] = WORD,
	['$'] = WORD,		[0x80 ... 0xff] = WORD,
};

static int at(const struct state *s, size_t place)
{
	return place < s->length ? s->text[place] : -1;
}

static int is(int c, int kind)
{
	return c >= 0 && (kinds[c] & kind);
}

/* Where a newline that follows a backslash ends, as does what is blank between them; 0 if there is none. */
static size_t splice(const struct state *s, size_t backslash)
{
	size_t place = backslash + 1;

	while (is(at(s, place), BLANK))
		place++;
	return at(s, place) == '\n' ? place + 1 : 0;
}

static size_t behind_splices(const struct state *s, size_t place)
{
	for (size_t next; at(s, place) == '\\' && (next = splice(s, place)); place = next)
		;
	return place;
}

static void show(struct state *s, unsigned char c)
{
	s->out[s->made++] = c;
	s->kept = s->made;
}

static void copy(struct state *s, size_t end)
{
	memcpy(s->out + s->made, s->text + s->at, end - s->at);
	s->made += end - s->at;
	s->kept = s->made;
	s->at = end;
}

/* Copy a splice; a quotation mark behind it must not belong to a word before it. */
static int copy_splice(struct state *s, size_t end)
{
	int joined = s->at > 0 && (is(s->text[s->at - 1], WORD) || s->behind == s->at);

	copy(s, end - 1);
	show(s, SPLICED);
	s->at = s->behind = end;
	return !joined || (at(s, end) != '"' && at(s, end) != '\'' && at(s, end) != '\\');
}

static void end_line(struct state *s)
{
	s->made = s->kept;
	show(s, '\n');
	s->token = s->directive = 0;
	s->expected = NOTHING;
	s->at++;
}

static int announces(const unsigned char *text, size_t length)
{
	for (size_t i = 0; i + 7 <= length; i++) {
		size_t j = i + 4;

		if ((text[i] | 32) != 'f' || (text[i + 1] | 32) != 'a' || (text[i + 2] | 32) != 'l' ||
		    (text[i + 3] | 32) != 'l')
			continue;
		while (j < length && ((text[j] | 32) == 's' || text[j] == ' ' || text[j] == '\t' || text[j] == '-' ||
				      text[j] == '_'))
			j++;
		if (j + 3 <= length && (text[j] | 32) == 't' && (text[j + 1] | 32) == 'h' && (text[j + 2] | 32) == 'r')
			return 1;
	}
	return 0;
}

/* Whether nothing but blanks is before this in its line of the text. */
static int is_first(const struct state *s)
{
	size_t place = s->at;

	while (place > 0 && is(s->text[place - 1], BLANK))
		place--;
	return place == 0 || s->text[place - 1] == '\n';
}

static void keep_comment(struct state *s, size_t end)
{
	for (; s->at < end; s->at++)
		show(s, s->text[s->at] == '\n' ? SPLICED : s->text[s->at]);
}

static int line_comment(struct state *s)
{
	size_t end = s->at + 2;
	int special = 0;

	for (;; end++) {
		int c = at(s, end);

		if (c < 0 || c == '\n')
			break;
		if (c >= 0x80)
			special = 1;
		if (c == '\\') {
			size_t next = splice(s, end);

			if (next) {
				special = 1;
				end = next - 1;
			}
		}
	}
	if (special || announces(s->text + s->at, end - s->at))
		keep_comment(s, end);
	else if (is_first(s))
		show(s, BEGINS);
	s->at = end;
	return 1;
}

static int block_comment(struct state *s)
{
	size_t end = s->at + 2;
	int special = 0;

	for (;; end++) {
		int c = at(s, end);

		if (c < 0)
			return 0;
		if (c == '*') {
			if (at(s, end + 1) == '/')
				break;
			if (at(s, behind_splices(s, end + 1)) == '/')
				return 0; /* the end, in two lines */
		} else if ((c == '/' && at(s, end + 1) == '*') || c >= 0x80 || (c == '\\' && splice(s, end))) {
			special = 1;
		}
	}
	end += 2;
	s->commented = end;
	if (special || announces(s->text + s->at, end - s->at)) {
		keep_comment(s, end);
		return 1;
	}
	for (; s->at < end; s->at++) {
		if (s->text[s->at] != '\n') {
			/* Warnings of indentation count in columns, and look at the beginning of each line. */
			if (!is(s->text[s->at], BLANK) && is_first(s))
				show(s, BEGINS);
			else
				s->out[s->made++] = s->text[s->at] == '\t' ? '\t' : ' ';
			continue;
		}
		s->made = s->kept;
		show(s, IN_COMMENT);
	}
	return 1;
}

/* Whether trigraphs, where they count, make the beginning of a directive or something else of a quotation mark here. */
static int is_rare(const struct state *s)
{
	int third = at(s, s->at + 2);

	return s->text[s->at] == '?' && at(s, s->at + 1) == '?' && (third == '=' || third == '\'');
}

/* Whether the beginning of a raw string follows, which may be a suffix of the literal before it instead. */
static int is_suffixed(const struct state *s)
{
	size_t place = s->at;

	if (at(s, place) == 'u' && at(s, place + 1) == '8')
		place += 2;
	else if (at(s, place) == 'L' || at(s, place) == 'u' || at(s, place) == 'U')
		place++;
	return at(s, place) == 'R' && at(s, place + 1) == '"';
}

/* A literal up to its end, or to the end of the line if it has none, as compilers read it. */
static int literal(struct state *s)
{
	int quote = s->text[s->at], escaped = 0;

	show(s, (unsigned char)quote);
	for (s->at++;;) {
		int c = at(s, s->at);
		size_t end;

		if (c < 0 || c == '\n')
			return 1;
		if (c == '\\' && (end = splice(s, s->at))) {
			if (escaped)
				return 0; /* what is behind the newline is escaped */
			copy_splice(s, end);
			continue;
		}
		if (is_rare(s))
			return 0;
		show(s, (unsigned char)c);
		s->at++;
		if (c == quote && !escaped)
			return !is_suffixed(s);
		escaped = c == '\\' && !escaped;
	}
}

static int raw_string(struct state *s)
{
	size_t begin = s->at + 1, open = begin, size;

	while (at(s, open) != '(') {
		int c = at(s, open);

		if (c < 0 || c == '\n' || is(c, BLANK) || c == ')' || c == '\\' || c == '"' || open - begin >= 16)
			return 0;
		open++;
	}
	size = open - begin;
	for (size_t end = open + 1; end + size + 1 < s->length; end++) {
		if (s->text[end] != ')' || s->text[end + size + 1] != '"' ||
		    memcmp(s->text + end + 1, s->text + begin, size) != 0)
			continue;
		for (end += size + 2; s->at < end; s->at++) {
			if (s->text[s->at] == '\n' && s->directive)
				return 0;
			show(s, s->text[s->at] == '\n' ? IN_LITERAL : s->text[s->at]);
		}
		return 1;
	}
	return 0;
}

/* The name of a header, in which no quotation mark is escaped and nothing begins a comment. */
static int header(struct state *s)
{
	int quote = s->text[s->at] == '<' ? '>' : '"';
	size_t end = s->at + 1;

	for (; at(s, end) != quote; end++) {
		int c = at(s, end);

		if (c == '\\')
			return 0;
		if (c < 0 || c == '\n') {
			if (quote == '"')
				return 0;
			show(s, '<');
			s->at++;
			return 1;
		}
	}
	for (size_t i = s->at + 1; i < end; i++) {
		/* Where a directive is skipped, this is no name but tokens. */
		if (s->text[i] == '/' && (s->text[i + 1] == '/' || s->text[i + 1] == '*') && quote == '>')
			return 0;
		if ((s->text[i] == '"' || s->text[i] == '\'') && quote == '>')
			return 0;
	}
	copy(s, end + 1);
	return 1;
}

static int is_word(const struct state *s, size_t begin, const char *word)
{
	size_t length = strlen(word);

	return s->at - begin == length && memcmp(s->text + begin, word, length) == 0;
}

static int ends_with(const struct state *s, size_t begin, const char *word)
{
	size_t length = strlen(word);

	return s->at - begin >= length && memcmp(s->text + s->at - length, word, length) == 0;
}

static int number(struct state *s)
{
	size_t begin = s->at;

	for (;; s->at++) {
		int c = at(s, s->at), before = s->at > begin ? s->text[s->at - 1] | 32 : 0;

		if (c == '\'') {
			/* gcc takes any of them, clang only those within a number. */
			if (!is(at(s, s->at + 1), WORD) || at(s, s->at + 1) == '$' || s->behind == begin)
				return 0;
			s->versioned = 1;
		} else if (c == '+' || c == '-') {
			if (before != 'e' && before != 'p')
				return 1;
			/* 0xe+1 is one number, but 0b1e+1 need not be one everywhere: the text is the same either way. */
		} else if (c == '$' || (c != '.' && !is(c, WORD))) {
			return 1;
		} else if (c >= 0x80) {
			return 0;
		}
		show(s, (unsigned char)c);
	}
}

/* Whether a comment in slashes and stars may begin in the rest of this line. */
static int has_comment(const struct state *s)
{
	for (size_t place = s->at; place + 1 < s->length && s->text[place] != '\n'; place++) {
		if (s->text[place] == '/' && s->text[place + 1] == '*')
			return 1;
	}
	return 0;
}

static int word(struct state *s)
{
	size_t begin = s->at, end = begin;
	int odd = begin > 0 && s->text[begin - 1] == '\\';

	for (; is(at(s, end), WORD); end++)
		odd |= s->text[end] >= 0x80;
	copy(s, end);
	/* Of a character that is written as a number, or may be blank, a quotation mark behind it may mean other things. */
	if (odd && (at(s, s->at) == '"' || at(s, s->at) == '\''))
		return 0;
	if (s->expected == DIRECTIVE) {
		/* A name that goes on behind a newline may be any. */
		if (at(s, s->at) == '\\' || s->behind == begin)
			return 0;
		if (is_word(s, begin, "include") || is_word(s, begin, "include_next") || is_word(s, begin, "import") ||
		    is_word(s, begin, "embed")) {
			s->expected = HEADER;
			return 1;
		}
		if (is_word(s, begin, "pragma"))
			s->directive = 2;
		/* clang takes the rest of the line as it is. */
		if ((is_word(s, begin, "error") || is_word(s, begin, "warning")) && has_comment(s))
			return 0;
	} else if (s->directive == 2 && (is_word(s, begin, "dependency") || is_word(s, begin, "mark"))) {
		return 0; /* one names a header, too, and the other takes the rest of the line as it is */
	}
	s->expected = !s->directive && is_word(s, begin, "import") ? HEADER : NOTHING;
	if (ends_with(s, begin, "has_include") || ends_with(s, begin, "has_include_next") || ends_with(s, begin, "has_embed")) {
		s->expected = OPENING;
		return at(s, s->at) != '\\';
	}
	if (at(s, s->at) == '"' && (is_word(s, begin, "R") || is_word(s, begin, "LR") || is_word(s, begin, "uR") ||
				    is_word(s, begin, "UR") || is_word(s, begin, "u8R"))) {
		s->versioned = 1;
		return s->behind != begin && raw_string(s);
	}
	return 1;
}

/* One token, or one character of it. */
static int take(struct state *s, int c)
{
	size_t end;

	if (c == '\\' && (end = splice(s, s->at))) {
		int before = s->at > 0 ? s->text[s->at - 1] : ' ';

		if ((before == '/' && s->at != s->commented) || before == '%' || s->expected == DIRECTIVE)
			return 0;
		return copy_splice(s, end);
	}
	if (!s->token && (c == '#' || (c == '%' && at(s, s->at + 1) == ':'))) {
		s->token = s->directive = 1;
		show(s, (unsigned char)c);
		s->at++;
		if (c == '%') {
			show(s, ':');
			s->at++;
		}
		if (at(s, s->at) == '#' || at(s, s->at) == '%')
			return 0;
		s->expected = DIRECTIVE;
		return 1;
	}
	s->token = 1;
	if (s->expected == HEADER && (c == '<' || c == '"')) {
		s->expected = NOTHING;
		return header(s);
	}
	if (is(c, DIGIT) || (c == '.' && is(at(s, s->at + 1), DIGIT))) {
		s->expected = NOTHING;
		return number(s);
	}
	if (is(c, WORD))
		return word(s);
	if (is_rare(s))
		return 0;
	s->expected = s->expected == OPENING && c == '(' ? HEADER : NOTHING;
	if (c == '"' || c == '\'')
		return literal(s);
	show(s, (unsigned char)c);
	s->at++;
	return 1;
}

/* Whether there is nothing that has to be read in a rarer way. */
static int is_plain(const unsigned char *text, size_t length)
{
	for (size_t i = 0; i < length; i++) {
		if (kinds[text[i]] & BAD)
			return 0;
		if (text[i] == '\r' && (i + 1 == length || text[i + 1] != '\n'))
			return 0;
		if (text[i] == '?' && i + 2 < length && text[i + 1] == '?' && text[i + 2] == '/')
			return 0; /* a backslash, where trigraphs count */
	}
	return 1;
}

/* Whether a text may turn on a warning that looks at comments, as by a pragma. */
static int asks_for_comments(const unsigned char *text, size_t length)
{
	static const char *const words[] = { "-Wdocumentation", "-Weverything", "-Wc90-c99-compat", "-Wimplicit-fallthrough=" };

	for (size_t i = 0; i < sizeof(words) / sizeof(*words); i++) {
		if (memmem(text, length, words[i], strlen(words[i])))
			return 1;
	}
	return 0;
}

long bare_text(const unsigned char *text, size_t length, unsigned char *out)
{
	struct state s = { .text = text, .length = length, .out = out, .behind = length + 1 };

	if (!is_plain(text, length) || asks_for_comments(text, length))
		return -1;
	if (length >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0)
		copy(&s, 3);
	while (s.at < length) {
		int c = text[s.at], good = 1;

		if (c == '\n')
			end_line(&s);
		else if (is(c, BLANK))
			out[s.made++] = (unsigned char)c, s.at++;
		else if (c == '/' && at(&s, s.at + 1) == '/')
			good = line_comment(&s);
		else if (c == '/' && at(&s, s.at + 1) == '*')
			good = block_comment(&s);
		else
			good = take(&s, c);
		if (!good)
			return -1;
	}
	if (length > 0 && text[length - 1] != '\n')
		out[s.kept++] = OPEN_END;
	if (s.versioned)
		out[s.kept++] = VERSIONED;
	return (long)s.kept;
}

/* The column of a byte of a form, which a tab moves to the next multiple of eight. */
static size_t column_behind(unsigned char c, size_t column)
{
	if (c == IN_COMMENT || c == IN_LITERAL || c == SPLICED)
		return 0;
	return c == '\t' ? (column / 8 + 1) * 8 : column + 1;
}

/* The least column at which a comment begins a line in a part of a form, or `least`. */
static size_t least_column(const unsigned char *part, size_t length, size_t least)
{
	for (size_t i = 0, column = 0; i < length; column = column_behind(part[i++], column)) {
		if (part[i] == BEGINS && column < least)
			least = column;
	}
	return least;
}

static int is_comment(unsigned char c)
{
	return c == IN_COMMENT || c == BEGINS || is(c, BLANK);
}

long drop_lines(const unsigned char *bare, size_t length, unsigned char *out)
{
	unsigned char *to = out;
	size_t least = SIZE_MAX; /* of the comments since the last token */

	for (size_t begin = 0, next; begin < length; begin = next) {
		const unsigned char *newline = memchr(bare + begin, '\n', length - begin);
		size_t whole = newline ? (size_t)(newline - bare) : length, end = whole, token = begin, column = 0;

		next = whole + 1;
		while (end > begin && is_comment(bare[end - 1]))
			end--;
		if (end > begin) {
			for (; is_comment(bare[token]); token++)
				column = column_behind(bare[token], column);
			if (least < column)
				*to++ = UNINDENTED;
			memcpy(to, bare + begin, end - begin);
			to += end - begin;
			*to++ = '\n';
			least = SIZE_MAX;
		}
		least = least_column(bare + end, whole - end, least);
	}
	return (long)(to - out);
}
