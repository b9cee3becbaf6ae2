/* Shared by the shims and by bare_text.py. */

#include <stddef.h>

/* Bytes by which a form may be longer than what it is made of. */
#define BARE_ROOM 4

/* Write a text's bare form; returns its length, or -1 if it has none. */
long bare_text(const unsigned char *text, size_t length, unsigned char *out);

/* Write a bare form without the lines that hold no token; returns its length. */
long drop_lines(const unsigned char *bare, size_t length, unsigned char *out);

/* Whether the R before a quotation mark begins a raw string: it is no part of a longer word than u8R, uR, UR or LR. */
int is_raw(const unsigned char *text, const unsigned char *r);

/* Write a part of a preprocessed text without its line numbers, at most three times as long; returns its length, or a
   negative number: see line_free.c. */
long line_free(const unsigned char *text, size_t length, unsigned char *out);

/* Write the lines of a preprocessed text that may enter a file, at most one byte longer; returns their length. */
long entering(const unsigned char *text, size_t length, unsigned char *out);

/* Say of each file of a preprocessed text whether it may show a line; see shown_lines.c. */
long shown_lines(const unsigned char *text, size_t length, unsigned char *out);
