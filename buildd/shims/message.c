/* MessagePack, written and read: what the shim needs of it. Knows no message. */

#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shim.h"

void (*on_no_memory)(void) = abort;

void put(struct buffer *buffer, const void *data, size_t length)
{
	if (buffer->length + length > buffer->room) {
		buffer->room = 2 * (buffer->length + length) + 4096;
		buffer->data = realloc(buffer->data, buffer->room);
		if (!buffer->data)
			on_no_memory();
	}
	memcpy(buffer->data + buffer->length, data, length);
	buffer->length += length;
}

void put_big(struct buffer *buffer, unsigned head, uint64_t value, int bytes)
{
	unsigned char text[9] = { (unsigned char)head };

	for (int i = 0; i < bytes; i++)
		text[1 + i] = (unsigned char)(value >> 8 * (bytes - 1 - i));
	put(buffer, text, 1 + (size_t)bytes);
}

void put_text(struct buffer *buffer, const char *text, size_t length)
{
	put_big(buffer, 0xdb, length, 4);
	put(buffer, text, length);
}

void put_string(struct buffer *buffer, const char *text)
{
	put_text(buffer, text, strlen(text));
}

void put_number(struct buffer *buffer, uint64_t number)
{
	put_big(buffer, 0xcf, number, 8);
}

int is_utf8(const char *text)
{
	const unsigned char *p = (const unsigned char *)text;

	while (*p) {
		int more = *p < 0x80 ? 0 : *p >= 0xc2 && *p < 0xe0 ? 1 : *p >= 0xe0 && *p < 0xf0 ? 2 : *p >= 0xf0 && *p < 0xf5 ? 3 : -1;

		if (more < 0 || (*p == 0xe0 && p[1] < 0xa0) || (*p == 0xed && p[1] >= 0xa0) || (*p == 0xf0 && p[1] < 0x90) ||
		    (*p == 0xf4 && p[1] >= 0x90))
			return 0;
		for (p++; more > 0; more--, p++)
			if ((*p & 0xc0) != 0x80)
				return 0;
	}
	return 1;
}

static uint64_t take_big(struct reader *reader, int bytes)
{
	uint64_t number = 0;

	if (reader->end - reader->at < bytes) {
		reader->bad = 1;
		return 0;
	}
	while (bytes-- > 0)
		number = number << 8 | *reader->at++;
	return number;
}

struct value take(struct reader *reader)
{
	struct value value = { OTHER, 0, NULL, 0 };
	unsigned head = (unsigned)take_big(reader, 1);
	int text = 0;

	if (reader->bad)
		return value;
	if (head < 0x80 || head >= 0xe0) {
		value.kind = NUMBER, value.number = head;
	} else if (head < 0x90) {
		value.kind = MAP, value.number = head & 15;
	} else if (head < 0xa0) {
		value.kind = LIST, value.number = head & 15;
	} else if (head < 0xc0) {
		text = 1, value.length = head & 31;
	} else if (head == 0xc4 || head == 0xd9) {
		text = 1, value.length = take_big(reader, 1);
	} else if (head == 0xc5 || head == 0xda) {
		text = 1, value.length = take_big(reader, 2);
	} else if (head == 0xc6 || head == 0xdb) {
		text = 1, value.length = take_big(reader, 4);
	} else if (head == 0xca || head == 0xcb) {
		take_big(reader, head == 0xca ? 4 : 8);
	} else if (head >= 0xcc && head <= 0xd3) {
		value.kind = NUMBER, value.number = take_big(reader, 1 << (head - 0xcc) % 4);
	} else if (head == 0xdc || head == 0xdd) {
		value.kind = LIST, value.number = take_big(reader, head == 0xdc ? 2 : 4);
	} else if (head == 0xde || head == 0xdf) {
		value.kind = MAP, value.number = take_big(reader, head == 0xde ? 2 : 4);
	} else if (head == 0xc3) {
		value.number = 1; /* true */
	} else if (head > 0xc3 || head == 0xc1) {
		reader->bad = 1; /* MessagePack's extensions are not supported */
	}
	if (text) {
		value.kind = TEXT;
		value.text = (const char *)reader->at;
		if ((size_t)(reader->end - reader->at) < value.length)
			reader->bad = 1;
		else
			reader->at += value.length;
	}
	return value;
}

static void skip(struct reader *reader, int depth)
{
	struct value value = take(reader);
	uint64_t count = value.kind == MAP ? 2 * value.number : value.kind == LIST ? value.number : 0;

	if (depth > 32)
		reader->bad = 1;
	while (count-- > 0 && !reader->bad)
		skip(reader, depth + 1);
}

/* Copy the texts of the list at `reader`, and end them with NULL; their number, or 0 where there is anything else or too
   many. */
int take_texts(struct reader reader, char **texts, uint64_t most)
{
	struct value list = take(&reader), text;

	if (list.kind != LIST || list.number > most)
		return 0;
	for (uint64_t i = 0; i < list.number; i++) {
		text = take(&reader);
		if (text.kind != TEXT || reader.bad || !(texts[i] = strndup(text.text, text.length)))
			return 0;
	}
	texts[list.number] = NULL;
	return (int)list.number;
}

/* Find the value of a key in the map at `reader`, which does not move; `*inner` becomes a reader of the value. */
struct value look_up(struct reader reader, const char *key, struct reader *inner)
{
	struct value map = take(&reader), nothing = { OTHER, 0, NULL, 0 };

	for (uint64_t i = 0; map.kind == MAP && i < map.number && !reader.bad; i++) {
		struct value name = take(&reader);

		if (name.kind == TEXT && name.length == strlen(key) && memcmp(name.text, key, name.length) == 0) {
			*inner = reader;
			return take(&reader);
		}
		skip(&reader, 0);
	}
	return nothing;
}

int is_word(struct value value, const char *word)
{
	return value.kind == TEXT && value.length == strlen(word) && memcmp(value.text, word, value.length) == 0;
}

void write_all(int descriptor, const unsigned char *data, size_t length)
{
	while (length > 0) {
		ssize_t written = write(descriptor, data, length);

		if (written < 0 && errno == EAGAIN) {
			struct pollfd ready = { descriptor, POLLOUT, 0 };

			poll(&ready, 1, -1);
		} else if (written < 0 && errno != EINTR) {
			return;
		} else if (written > 0) {
			data += written;
			length -= (size_t)written;
		}
	}
}
