/* Stands where a compiler is looked for, and asks the daemon to compile instead. See protocol/SPEC.md, "Stand-ins".

   Knows the wire (ZMTP 3.1 with mechanism NULL, MessagePack) and nothing of what a command line means. What was asked
   before is answered without the daemon where it can be (answer.c). Whatever is not as it should be ends in `run_tool`:
   the tool itself runs, as if this program were not there. Under the name buildd-cc it takes the tool as its first
   argument. NAMES, the variables that it sends, comes from the compiler's command line. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "launcher.h"

#ifndef NAMES
#define NAMES "PATH,LANG,LC_*"
#endif
#define MARK ".buildd-launchers" /* in every folder of stand-ins; in it may be links to the real tools, by name */
#define WELCOME_MS 5000

extern char **environ;

char tool[PATH_MAX];
char **arguments;

static void __attribute__((noreturn)) become_tool(void)
{
	if (!tool[0]) {
		fprintf(stderr, "buildd: there is no %s behind this stand-in\n", arguments[0]);
		_exit(127);
	}
	arguments[0] = tool;
	execv(tool, arguments);
	fprintf(stderr, "buildd: cannot run %s: %s\n", tool, strerror(errno));
	_exit(errno == ENOENT ? 127 : 126);
}

void run_tool(void)
{
	/* Compilers that the tool calls are part of this one command. */
	setenv("BUILDD_DISABLE", "1", 1);
	become_tool();
}

/* ---------------------------------------------------------------- which tool */

/* Whether there is a program, and not this one under another name. */
static int is_program(const char *path)
{
	struct stat status, self;

	return access(path, X_OK) == 0 && stat(path, &status) == 0 && S_ISREG(status.st_mode) &&
	       stat("/proc/self/exe", &self) == 0 && (status.st_ino != self.st_ino || status.st_dev != self.st_dev);
}

static int is_ours(const char *folder)
{
	char mark[PATH_MAX];

	return snprintf(mark, sizeof mark, "%s/" MARK, folder) < (int)sizeof mark && access(mark, F_OK) == 0;
}

/* The first program of this name on PATH that is no stand-in. */
static int search(const char *name, char *found)
{
	const char *path = getenv("PATH");

	while (path && *path) {
		size_t length = strcspn(path, ":");
		char folder[PATH_MAX];

		if (length > 0 && length < sizeof folder) {
			memcpy(folder, path, length);
			folder[length] = 0;
			if (folder[0] == '/' && snprintf(found, PATH_MAX, "%s/%s", folder, name) < PATH_MAX &&
			    is_program(found) && !is_ours(folder))
				return 1;
		}
		path += length + (path[length] == ':');
	}
	found[0] = 0;
	return 0;
}

/* What a program stands for: the tool that its folder has a record of, else the next one on PATH; itself where its
   folder is none of ours. */
static int behind(const char *program, char *found)
{
	char folder[PATH_MAX], record[PATH_MAX];
	const char *slash = strrchr(program, '/');
	ssize_t length;

	if (snprintf(folder, sizeof folder, "%.*s", (int)(slash - program), program) >= (int)sizeof folder)
		return 0;
	if (!is_ours(folder) && is_program(program)) {
		snprintf(found, PATH_MAX, "%s", program);
		return 1;
	}
	if (snprintf(record, sizeof record, "%s/" MARK "/%s", folder, slash + 1) < (int)sizeof record) {
		length = readlink(record, found, PATH_MAX - 1);
		if (length > 0) {
			found[length] = 0;
			if (found[0] == '/' && is_program(found))
				return 1;
		}
	}
	return search(slash + 1, found);
}

/* Finds the tool; the name under which we are called. */
static const char *find_tool(char **argv)
{
	static char self[PATH_MAX];
	ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);

	arguments = argv;
	if (length <= 0)
		return "";
	self[length] = 0;
	if (strcmp(strrchr(self, '/') + 1, "buildd-cc") != 0) {
		behind(self, tool);
		return strrchr(self, '/') + 1;
	}
	if (!argv[1]) {
		fprintf(stderr, "usage: buildd-cc COMPILER ARGUMENT...\n");
		_exit(2);
	}
	arguments = argv + 1;
	if (strchr(argv[1], '/')) {
		char place[PATH_MAX];

		if (argv[1][0] == '/')
			behind(argv[1], tool);
		else if (getcwd(place, sizeof place) && strlen(place) + strlen(argv[1]) + 2 < sizeof place) {
			strcat(strcat(place, "/"), argv[1]);
			behind(place, tool);
		}
	} else {
		search(argv[1], tool);
	}
	return "";
}

/* ---------------------------------------------------------------- where the daemon is: SPEC.md, section 1 */

static const uint32_t K[64] = {
	0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
	0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
	0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
	0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
	0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
	0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
	0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
	0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t turn(uint32_t x, int n)
{
	return x >> n | x << (32 - n);
}

/* SHA-256 (FIPS 180-4) of at most 119 bytes. */
static void sha256(const char *text, uint32_t h[8])
{
	static const uint32_t start[8] = { 0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
					   0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19 };
	unsigned char block[128] = { 0 };
	size_t length = strlen(text), blocks = length < 56 ? 1 : 2;

	memcpy(block, text, length);
	block[length] = 0x80;
	block[64 * blocks - 2] = (unsigned char)(length * 8 >> 8);
	block[64 * blocks - 1] = (unsigned char)(length * 8);
	memcpy(h, start, sizeof start);
	for (size_t b = 0; b < blocks; b++) {
		uint32_t w[64], v[8];

		for (int i = 0; i < 16; i++) {
			const unsigned char *p = block + 64 * b + 4 * i;

			w[i] = (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
		}
		for (int i = 16; i < 64; i++)
			w[i] = w[i - 16] + (turn(w[i - 15], 7) ^ turn(w[i - 15], 18) ^ w[i - 15] >> 3) + w[i - 7] +
			       (turn(w[i - 2], 17) ^ turn(w[i - 2], 19) ^ w[i - 2] >> 10);
		memcpy(v, h, sizeof v);
		for (int i = 0; i < 64; i++) {
			uint32_t one = v[7] + (turn(v[4], 6) ^ turn(v[4], 11) ^ turn(v[4], 25)) +
				       ((v[4] & v[5]) ^ (~v[4] & v[6])) + K[i] + w[i];
			uint32_t two = (turn(v[0], 2) ^ turn(v[0], 13) ^ turn(v[0], 22)) +
				       ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));

			memmove(v + 1, v, 7 * sizeof v[0]);
			v[4] += one;
			v[0] = one + two;
		}
		for (int i = 0; i < 8; i++)
			h[i] += v[i];
	}
}

static int is_private(const char *folder)
{
	struct stat status;

	return lstat(folder, &status) == 0 && S_ISDIR(status.st_mode) && status.st_uid == geteuid() &&
	       !(status.st_mode & 077);
}

/* A file's content with a final zero, without white space at its end; its length, or -1. */
static int slurp(const char *path, char *text, size_t size)
{
	int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	ssize_t length = descriptor < 0 ? -1 : read(descriptor, text, size - 1);

	if (descriptor >= 0)
		close(descriptor);
	if (length < 0)
		return -1;
	while (length > 0 && strchr(" \n\t", text[length - 1]))
		length--;
	text[length] = 0;
	return (int)length;
}

/* Whether logout leaves a folder below /run/user alone: then systemd has a file for this user. */
static int lingers(void)
{
	char line[1024], *name, *rest, path[PATH_MAX];
	FILE *users = fopen("/etc/passwd", "re");
	int found = 0;

	while (users && !found && fgets(line, sizeof line, users)) {
		rest = line;
		name = strsep(&rest, ":");
		strsep(&rest, ":");
		if (rest && strtoul(rest, NULL, 10) == geteuid()) {
			snprintf(path, sizeof path, "/var/lib/systemd/linger/%s", name);
			found = access(path, F_OK) == 0;
			break;
		}
	}
	if (users)
		fclose(users);
	return found;
}

static int find_base(char *base, size_t size)
{
	const char *given = getenv("BUILDD_RUNTIME_DIR"), *session = getenv("XDG_RUNTIME_DIR");

	if (given && *given)
		return given[0] == '/' && snprintf(base, size, "%s", given) < (int)size;
	if (session && session[0] == '/' && strlen(session) <= 70 && is_private(session) &&
	    (strncmp(session, "/run/user/", 10) != 0 || strchr(session + 10, '/') || lingers()))
		return snprintf(base, size, "%s/buildd", session) < (int)size;
	return access("/tmp", W_OK | X_OK) == 0 && snprintf(base, size, "/tmp/buildd-%u", geteuid()) < (int)size;
}

static unsigned long inode(const char *path)
{
	struct stat status;

	return stat(path, &status) == 0 ? (unsigned long)status.st_ino : 0;
}

/* The daemon's endpoint file, read once; empty where there is none of a protocol that is spoken here. */
static const char *endpoint(void)
{
	static char text[8192];
	static int known;
	char base[PATH_MAX], folder[PATH_MAX + 16], file[PATH_MAX + 32], boot[64], *field;
	uint32_t digest[8];

	if (known++)
		return text;
	if (!find_base(base, sizeof base))
		return text;
	if (slurp("/proc/sys/kernel/random/boot_id", boot, sizeof boot) < 0)
		boot[0] = 0;
	snprintf(text, 120, "%s|%lu|%lu", boot, inode("/proc/self/ns/mnt"), inode("/proc/self/ns/pid"));
	sha256(text, digest);
	snprintf(folder, sizeof folder, "%s/%08x%04x", base, digest[0], digest[1] >> 16);
	snprintf(file, sizeof file, "%s/endpoint.json", folder);
	if (!is_private(base) || !is_private(folder) || slurp(file, text, sizeof text) < 0)
		text[0] = 0;
	field = strstr(text, "\"protocol\":");
	if (field && strtol(field + 11, NULL, 10) != 1)
		text[0] = 0;
	return text;
}

/* The path of the daemon's work socket. */
static int find_socket(struct sockaddr_un *address)
{
	const char *field = strstr(endpoint(), "\"work\":");
	size_t length;

	if (!field || !(field = strstr(field + 7, "\"ipc://")))
		return 0;
	field += 7;
	length = strcspn(field, "\"");
	if (length >= sizeof address->sun_path || memchr(field, '\\', length))
		return 0;
	address->sun_family = AF_UNIX;
	memcpy(address->sun_path, field, length);
	address->sun_path[length] = 0;
	return 1;
}

/* The store that the daemon uses for us: what we name, else its own. */
static int find_store(char *store, size_t size)
{
	const char *named = getenv("BUILDD_DIR"), *field;
	size_t length;

	if (named && named[0] == '/')
		return snprintf(store, size, "%s", named) < (int)size;
	field = strstr(endpoint(), "\"store\":\"");
	if (!field)
		return 0;
	length = strcspn(field += 9, "\"");
	return !memchr(field, '\\', length) && snprintf(store, size, "%.*s", (int)length, field) < (int)size;
}

/* ---------------------------------------------------------------- bytes */

void put(struct buffer *buffer, const void *data, size_t length)
{
	if (buffer->length + length > buffer->room) {
		buffer->room = 2 * (buffer->length + length) + 4096;
		buffer->data = realloc(buffer->data, buffer->room);
		if (!buffer->data)
			run_tool();
	}
	memcpy(buffer->data + buffer->length, data, length);
	buffer->length += length;
}

static void put_big(struct buffer *buffer, unsigned head, uint64_t value, int bytes)
{
	unsigned char text[9] = { (unsigned char)head };

	for (int i = 0; i < bytes; i++)
		text[1 + i] = (unsigned char)(value >> 8 * (bytes - 1 - i));
	put(buffer, text, 1 + (size_t)bytes);
}

static void put_text(struct buffer *buffer, const char *text, size_t length)
{
	put_big(buffer, 0xdb, length, 4);
	put(buffer, text, length);
}

static void put_string(struct buffer *buffer, const char *text)
{
	put_text(buffer, text, strlen(text));
}

static void put_number(struct buffer *buffer, uint64_t number)
{
	put_big(buffer, 0xcf, number, 8);
}

static int is_utf8(const char *text)
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

/* ---------------------------------------------------------------- what is asked */

/* Frames of one message: the magic, then a MessagePack map. */
static void put_message(struct buffer *out, const struct buffer *body)
{
	put(out, "\1\7buildd1", 9);
	put_big(out, 2, body->length, 8);
	put(out, body->data, body->length);
}

static void put_hello(struct buffer *out)
{
	struct buffer body = { 0 };
	char text[1024], *field = NULL;
	int blanks = 0;

	if (slurp("/proc/self/stat", text, sizeof text) > 0)
		field = strrchr(text, ')');
	for (; field && *field && blanks < 20; field++)
		blanks += *field == ' ';
	put_big(&body, 0x85, 0, 0);
	put_string(&body, "type"), put_string(&body, "hello");
	put_string(&body, "version"), put_number(&body, 1);
	put_string(&body, "client"), put_string(&body, "buildd-launcher/1");
	put_string(&body, "pid"), put_number(&body, (uint64_t)getpid());
	put_string(&body, "start_ticks"), put_number(&body, field ? strtoull(field, NULL, 10) : 0);
	put_message(out, &body);
}

int is_sent(const char *variable)
{
	size_t length = strcspn(variable, "=");

	for (const char *name = NAMES; *name;) {
		size_t size = strcspn(name, ",");
		int prefix = name[size - 1] == '*';

		if (prefix ? length >= size - 1 && memcmp(variable, name, size - 1) == 0
			   : length == size && memcmp(variable, name, size) == 0)
			return 1;
		name += size + (name[size] == ',');
	}
	return 0;
}

/* The current folder as the caller spells it: gcc writes it so into debug information. */
const char *current_folder(char *place)
{
	const char *spelled = getenv("PWD");
	struct stat there, here;

	if (spelled && spelled[0] == '/' && strlen(spelled) < PATH_MAX && !strstr(spelled, "/.") &&
	    stat(spelled, &there) == 0 && stat(".", &here) == 0 && there.st_ino == here.st_ino &&
	    there.st_dev == here.st_dev)
		return spelled;
	return getcwd(place, PATH_MAX);
}

/* Whether the user asked for everything to be compiled again. */
static int recaches(void)
{
	const char *again = getenv("BUILDD_RECACHE");

	return again && *again && !strchr("0nNfF", *again) && strcasecmp(again, "off") != 0;
}

static void put_submit(struct buffer *out)
{
	struct buffer body = { 0 };
	unsigned char random[16];
	char id[33], place[PATH_MAX];
	const char *folder = current_folder(place), *build = getenv("BUILDD_BUILD_ID");
	const char *store = getenv("BUILDD_DIR");
	uint32_t count = 0;
	mode_t mask = umask(0);

	umask(mask);
	if (!folder || getrandom(random, sizeof random, 0) != sizeof random)
		run_tool();
	for (int i = 0; i < 16; i++)
		sprintf(id + 2 * i, "%02x", random[i]);
	if (!build || !*build || !is_utf8(build))
		build = "stand-ins";
	if (!store || store[0] != '/')
		store = "";
	put_big(&body, 0x82, 0, 0);
	put_string(&body, "type"), put_string(&body, "submit");
	put_string(&body, "request");
	put_big(&body, 0x8b, 0, 0);
	put_string(&body, "request_id"), put_string(&body, id);
	put_string(&body, "build_id"), put_string(&body, build);
	put_string(&body, "project"), put_string(&body, folder);
	put_string(&body, "file"), put_string(&body, "");
	put_string(&body, "mode"), put_string(&body, "compile");
	put_string(&body, "on_disconnect"), put_string(&body, "cancel");
	put_string(&body, "store"), put_string(&body, store);
	put_string(&body, "umask"), put_number(&body, mask);
	put_string(&body, "recache");
	put_big(&body, recaches() ? 0xc3 : 0xc2, 0, 0);
	while (arguments[count])
		count++;
	put_string(&body, "command");
	put_big(&body, 0xdd, count, 4);
	put_string(&body, tool);
	for (uint32_t i = 1; i < count; i++) {
		if (!is_utf8(arguments[i]))
			run_tool();
		put_string(&body, arguments[i]);
	}
	count = 0;
	for (char **variable = environ; *variable; variable++)
		count += is_sent(*variable) && strchr(*variable, '=');
	put_string(&body, "environment");
	put_big(&body, 0xdf, count, 4);
	for (char **variable = environ; *variable; variable++) {
		const char *value = strchr(*variable, '=');

		if (!value || !is_sent(*variable))
			continue;
		if (!is_utf8(*variable))
			run_tool();
		put_text(&body, *variable, (size_t)(value - *variable));
		put_string(&body, value + 1);
	}
	if (!is_utf8(folder) || !is_utf8(tool) || !is_utf8(store) || body.length > MOST_BYTES)
		run_tool();
	put_message(out, &body);
}

/* ---------------------------------------------------------------- what is answered */

struct reader {
	const unsigned char *at, *end;
	int bad;
};

struct value {
	enum { OTHER, NUMBER, TEXT, MAP, LIST } kind;
	uint64_t number; /* or the count of a map's pairs or a list's items */
	const char *text;
	size_t length;
};

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

static struct value take(struct reader *reader)
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
	} else if (head > 0xc3 || head == 0xc1) {
		reader->bad = 1; /* extensions are not spoken here */
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

/* The value under a key of the map at `reader`, which stays where it is; a reader for it in `*inner`. */
static struct value look_up(struct reader reader, const char *key, struct reader *inner)
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

static int is_word(struct value value, const char *word)
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

static void end_as(uint64_t status, uint64_t number)
{
	struct rlimit none = { 0, 0 };

	if (number > 0) {
		setrlimit(RLIMIT_CORE, &none); /* the core would be ours, not the tool's */
		signal((int)number, SIG_DFL);
		raise((int)number);
		status = 128 + number;
	}
	_exit((int)status);
}

static struct buffer said[2]; /* standard output and error, until it is sure that they will not be said again */

/* Whether the daemon has taken us in. Does not return where this message ends it all. */
static int heard(const unsigned char *data, size_t length)
{
	struct reader message = { data, data + length, 0 }, body, field;
	struct value type = look_up(message, "type", &field), inner;

	if (is_word(type, "welcome"))
		return 1;
	if (is_word(type, "error") || is_word(type, "refused"))
		run_tool();
	if (!is_word(type, "event") || look_up(message, "body", &body).kind != MAP)
		return 0;
	type = look_up(body, "type", &field);
	if (is_word(type, "tool_output")) {
		int stream = is_word(look_up(body, "stream", &field), "stderr");

		inner = look_up(body, "data", &field);
		if (inner.kind == TEXT)
			put(&said[stream], inner.text, inner.length);
	} else if (is_word(type, "done")) {
		struct value status = look_up(body, "exit_status", &field), number = look_up(body, "signal", &field);
		struct value outcome = look_up(body, "outcome", &field);

		if (!is_word(outcome, "built") && !(is_word(outcome, "failed") && (status.number || number.number)))
			run_tool();
		write_all(1, said[0].data, said[0].length);
		write_all(2, said[1].data, said[1].length);
		end_as(status.number, number.number);
	}
	return 0;
}

/* Takes whole frames off the front of what came in; the number of bytes used. */
static size_t take_frames(const struct buffer *in, size_t start, int *welcomed)
{
	while (in->length - start >= 2) {
		const unsigned char *frame = in->data + start;
		uint64_t length = frame[1];
		size_t head = 2;

		if (frame[0] & 2) {
			if (in->length - start < 9)
				break;
			length = 0;
			head = 9;
			for (int i = 1; i < 9; i++)
				length = length << 8 | frame[i];
		}
		if (length > MOST_BYTES)
			run_tool();
		if (in->length - start < head + length)
			break;
		if (!(frame[0] & 5)) /* the last frame of a message, and no command */
			*welcomed |= heard(frame + head, length);
		start += head + length;
	}
	return start;
}

static int send_all(int connection, const struct buffer *out)
{
	for (size_t sent = 0; sent < out->length;) {
		ssize_t written = send(connection, out->data + sent, out->length - sent, MSG_NOSIGNAL);

		if (written < 0 && errno == EINTR)
			continue;
		if (written <= 0)
			return 0;
		sent += (size_t)written;
	}
	return 1;
}

/* Whether more came in; waits no longer than `most_ms`, for ever where that is -1. */
static int receive(int connection, struct buffer *in, int most_ms)
{
	struct pollfd readable = { connection, POLLIN, 0 };
	unsigned char piece[16384];
	ssize_t length;
	int count;

	do
		count = poll(&readable, 1, most_ms);
	while (count < 0 && errno == EINTR);
	if (count <= 0)
		return 0;
	do
		length = read(connection, piece, sizeof piece);
	while (length < 0 && errno == EINTR);
	if (length <= 0)
		return 0;
	put(in, piece, (size_t)length);
	return 1;
}

static void ask(int connection)
{
	static const unsigned char ready[] = "\4\x1c\5READY\13Socket-Type\0\0\0\6DEALER";
	unsigned char greeting[64] = { 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0x7f, 3, 1, 'N', 'U', 'L', 'L' };
	struct buffer first = { greeting, sizeof greeting, 0 }, out = { 0 }, in = { 0 };
	struct timeval most = { WELCOME_MS / 1000, 0 };
	size_t used = sizeof greeting;
	int welcomed = 0;

	setsockopt(connection, SOL_SOCKET, SO_SNDTIMEO, &most, sizeof most);
	if (!send_all(connection, &first))
		return;
	put(&out, ready, sizeof ready - 1);
	put_hello(&out);
	put_submit(&out);
	/* libzmq hangs up on a peer whose messages come in one piece with its greeting. */
	while (in.length < sizeof greeting)
		if (!receive(connection, &in, WELCOME_MS))
			return;
	if (!send_all(connection, &out))
		return;
	do
		used = take_frames(&in, used, &welcomed);
	while (receive(connection, &in, welcomed ? -1 : WELCOME_MS));
}

/* ---------------------------------------------------------------- what builds: make, ninja */

/* Whether this is the name of a tool that shares a build's tokens: those that jobserver.py has stand-ins for. */
static int is_builder(const char *name)
{
	return strcmp(name, "make") == 0 || strcmp(name, "gmake") == 0 || strcmp(name, "ninja") == 0;
}

/* Name the jobserver of `buildd run` in MAKEFLAGS, unless there is one or a width of its own. Where make takes open pipes
   only (up to 4.3) ninja is not told: it takes none, and what it is told reaches every make that it calls. */
static void offer_tokens(const char *name)
{
	const char *tokens = getenv("BUILDD_JOBSERVER"), *flags = getenv("MAKEFLAGS");
	char text[PATH_MAX + 4096];
	int fifo[2], by_pipe;

	if (!tokens || !*tokens || (flags && strstr(flags, "--jobserver")))
		return;
	for (char **argument = arguments + 1; *argument; argument++)
		if (strncmp(*argument, "-j", 2) == 0 || strncmp(*argument, "--jobs", 6) == 0)
			return;
	by_pipe = strncmp(tokens, "pipe:", 5) == 0;
	if (by_pipe && strcmp(name, "ninja") == 0)
		return;
	if (by_pipe) {
		/* Left open: they are for what it runs too. */
		for (int i = 0; i < 2; i++)
			if ((fifo[i] = open(tokens + 5, O_RDWR)) < 0)
				return;
		snprintf(text, sizeof text, "%s --jobserver-auth=%d,%d", flags ? flags : "", fifo[0], fifo[1]);
	} else {
		snprintf(text, sizeof text, "%s --jobserver-auth=fifo:%s", flags ? flags : "", tokens);
	}
	setenv("MAKEFLAGS", text, 1);
}

static int is_on(const char *value)
{
	static const char *const no[] = { "", "0", "false", "no", "off" };

	for (size_t i = 0; i < sizeof no / sizeof no[0]; i++)
		if (!value || strcasecmp(value, no[i]) == 0)
			return 0;
	return 1;
}

int main(int argc, char **argv)
{
	struct sockaddr_un address = { 0 };
	char store[PATH_MAX];
	const char *name;
	int connection;

	if (argc < 1)
		return 127;
	name = find_tool(argv);
	if (is_builder(name)) {
		offer_tokens(name);
		become_tool();
	}
	if (!tool[0] || is_on(getenv("BUILDD_DISABLE")))
		run_tool();
	if (!recaches() && find_store(store, sizeof store))
		answer(store);
	if (!find_socket(&address))
		run_tool();
	connection = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	/* Not to wait here: a daemon whose queue is full has more to do than it can. */
	if (connection >= 0 && fcntl(connection, F_SETFL, O_NONBLOCK) == 0 &&
	    connect(connection, (struct sockaddr *)&address, sizeof address) == 0 && fcntl(connection, F_SETFL, 0) == 0)
		ask(connection);
	run_tool();
}
