/* Direct hits: the shim itself finds, checks and delivers answers of earlier compiles, with or without a daemon.

   Knows the files that buildd/store/answers.py writes, and nothing of what a command line means. An answer counts only
   if every file and folder has its old stamp, by the rules of buildd/files/stamp_set.py, or its old content, or at least
   its old bare form (bare_text.c) where comments cannot reach the result, without the lines that hold no token where
   lines cannot; in any doubt there is no answer. */

#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "../native/bare_text.h"
#include "shim.h"

#define MAGIC "buildd-answer 6\n"
#define DIGEST 32
#define STAMP 5
#define MOST_READ (8 << 20) /* of files with another stamp */
#define MOST_NOTES (16 << 20)
#define PATIENCE_MS 20

extern char **environ;

struct head {
	char magic[16];
	unsigned char check[DIGEST]; /* of everything behind it, but for the object */
	unsigned char question[DIGEST], object[DIGEST];
	uint64_t object_length, facts_length;
};

/* ---------------------------------------------------------------- digests: BLAKE2b (RFC 7693), of 32 bytes */

static const uint64_t IV[8] = {
	0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b, 0xa54ff53a5f1d36f1,
	0x510e527fade682d1, 0x9b05688c2b3e6c1f, 0x1f83d9abfb41bd6b, 0x5be0cd19137e2179,
};

static const unsigned char SIGMA[10][16] = {
	{ 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 },
	{ 14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3 },
	{ 11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4 },
	{ 7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8 },
	{ 9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13 },
	{ 2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9 },
	{ 12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11 },
	{ 13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10 },
	{ 6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5 },
	{ 10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0 },
};

static inline uint64_t turn(uint64_t x, int n)
{
	return x >> n | x << (64 - n);
}

static inline void mix(uint64_t *v, int a, int b, int c, int d, uint64_t x, uint64_t y)
{
	v[a] += v[b] + x, v[d] = turn(v[d] ^ v[a], 32);
	v[c] += v[d], v[b] = turn(v[b] ^ v[c], 24);
	v[a] += v[b] + y, v[d] = turn(v[d] ^ v[a], 16);
	v[c] += v[d], v[b] = turn(v[b] ^ v[c], 63);
}

static void compress(uint64_t *h, const unsigned char *block, uint64_t count, uint64_t last)
{
	uint64_t v[16], m[16];

	memcpy(m, block, sizeof m); /* with the other byte order nothing matches */
	memcpy(v, h, 8 * sizeof *v);
	memcpy(v + 8, IV, sizeof IV);
	v[12] ^= count;
	v[14] ^= last;
	for (int i = 0; i < 12; i++) {
		const unsigned char *s = SIGMA[i % 10];

		mix(v, 0, 4, 8, 12, m[s[0]], m[s[1]]);
		mix(v, 1, 5, 9, 13, m[s[2]], m[s[3]]);
		mix(v, 2, 6, 10, 14, m[s[4]], m[s[5]]);
		mix(v, 3, 7, 11, 15, m[s[6]], m[s[7]]);
		mix(v, 0, 5, 10, 15, m[s[8]], m[s[9]]);
		mix(v, 1, 6, 11, 12, m[s[10]], m[s[11]]);
		mix(v, 2, 7, 8, 13, m[s[12]], m[s[13]]);
		mix(v, 3, 4, 9, 14, m[s[14]], m[s[15]]);
	}
	for (int i = 0; i < 8; i++)
		h[i] ^= v[i] ^ v[i + 8];
}

static void digest(const unsigned char *data, size_t length, unsigned char *out)
{
	unsigned char last[128] = { 0 };
	uint64_t h[8];
	size_t done = 0;

	memcpy(h, IV, sizeof h);
	h[0] ^= 0x01010000 ^ DIGEST;
	for (; length - done > sizeof last; done += sizeof last)
		compress(h, data + done, done + sizeof last, 0);
	if (length > done)
		memcpy(last, data + done, length - done);
	compress(h, last, length, ~(uint64_t)0);
	memcpy(out, h, DIGEST);
}

static int is_digest(const unsigned char *data, size_t length, const unsigned char *wanted)
{
	unsigned char found[DIGEST];

	digest(data, length, found);
	return memcmp(found, wanted, DIGEST) == 0;
}

/* ---------------------------------------------------------------- the question */

static int by_bytes(const void *one, const void *other)
{
	return strcmp(*(char *const *)one, *(char *const *)other);
}

static void put_strings(struct buffer *question, char *const *strings, uint32_t count)
{
	put(question, &count, sizeof count);
	for (uint32_t i = 0; i < count; i++)
		put(question, strings[i], strlen(strings[i]) + 1);
}

/* The question: all that the daemon would be asked, apart from what changes no result, and which version of buildd
   wrote the answers of this folder. 0 if that is unknown. */
static int put_question(struct buffer *question, int place)
{
	char spelled[PATH_MAX], real[PATH_MAX], by[128], *folders[2], *code = by, **sent, **command;
	int file = openat(place, "code", O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	ssize_t length = file < 0 ? -1 : read(file, by, sizeof by - 1);
	uint32_t count = 0, size = 0;

	if (file >= 0)
		close(file);
	folders[0] = (char *)current_folder(spelled);
	folders[1] = getcwd(real, sizeof real);
	if (length <= 0 || !folders[0] || !folders[1])
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
		/* A compile that depends on the GPUs shown has no answer. */
		if (strchr(*variable, '=') && is_sent(*variable) && strncmp(*variable, "CUDA_VISIBLE_DEVICES=", 21) != 0)
			sent[size++] = *variable;
	qsort(sent, size, sizeof *sent, by_bytes);
	put_strings(question, &code, 1);
	put_strings(question, command, count);
	put_strings(question, folders, 2);
	put_strings(question, sent, size);
	free(command);
	free(sent);
	return 1;
}

/* ---------------------------------------------------------------- reading an answer */

struct facts {
	const unsigned char *at, *end;
	int bad;
};

static uint64_t take_number(struct facts *facts, size_t size)
{
	uint64_t number = 0;

	if ((size_t)(facts->end - facts->at) < size) {
		facts->bad = 1;
		return 0;
	}
	memcpy(&number, facts->at, size);
	facts->at += size;
	return number;
}

static uint32_t take_count(struct facts *facts)
{
	return (uint32_t)take_number(facts, 4);
}

static const char *take_string(struct facts *facts)
{
	const char *string = (const char *)facts->at;
	const unsigned char *zero = memchr(facts->at, 0, (size_t)(facts->end - facts->at));

	if (!zero) {
		facts->bad = 1;
		return "";
	}
	facts->at = zero + 1;
	return string;
}

static struct buffer take_bytes(struct facts *facts)
{
	struct buffer bytes = { NULL, take_count(facts), 0 };

	if ((size_t)(facts->end - facts->at) < bytes.length) {
		facts->bad = 1;
		bytes.length = 0;
	}
	bytes.data = (unsigned char *)facts->at;
	facts->at += bytes.length;
	return bytes;
}

/* ---------------------------------------------------------------- checking inputs: buildd/files/stamp_set.py */

/* Read `length` bytes; NULL if there are fewer. */
static unsigned char *read_at(int descriptor, size_t length, off_t start)
{
	unsigned char *data = malloc(length + 1);
	size_t done = 0;

	while (data && done < length) {
		ssize_t count = pread(descriptor, data + done, length - done, start + (off_t)done);

		if (count < 0 && errno == EINTR)
			continue;
		if (count <= 0) {
			free(data);
			return NULL;
		}
		done += (size_t)count;
	}
	return data;
}

static void take_stamp(const struct stat *status, uint64_t numbers[STAMP])
{
	memset(numbers, 0, STAMP * sizeof *numbers);
	if (S_ISREG(status->st_mode)) {
		numbers[0] = (uint64_t)status->st_dev;
		numbers[1] = (uint64_t)status->st_ino;
		numbers[2] = (uint64_t)status->st_size;
		numbers[3] = (uint64_t)status->st_mtim.tv_sec * 1000000000u + (uint64_t)status->st_mtim.tv_nsec;
		numbers[4] = (uint64_t)status->st_ctim.tv_sec * 1000000000u + (uint64_t)status->st_ctim.tv_nsec;
	}
}

static const unsigned char unknown[DIGEST];

/* What a file must still have. */
struct digests {
	const unsigned char *content, *bare, *loose;
};

/* Whether a text has one of its bare forms, which comments are no part of: with the line of every token, or without. */
static int bare_form_holds(const unsigned char *data, size_t length, const struct digests *wanted)
{
	unsigned char *form = malloc(length + BARE_ROOM), *loose = NULL;
	long made = form ? bare_text(data, length, form) : -1;
	int same = made >= 0 && is_content(form, (size_t)made, wanted->bare);

	if (made >= 0 && !same && memcmp(wanted->loose, unknown, DIGEST) != 0 && (loose = malloc((size_t)made + BARE_ROOM)))
		same = is_content(loose, (size_t)drop_lines(form, (size_t)made, loose), wanted->loose);
	free(loose);
	free(form);
	return same;
}

/* Whether a rewritten or replaced file has the same content, or at least the same bare form. */
static int content_holds(int place, const char *path, uint64_t was, uint64_t size, const struct digests *wanted,
			 uint64_t *most)
{
	int may_be_same = was == size && memcmp(wanted->content, unknown, DIGEST) != 0;
	int may_be_bare = memcmp(wanted->bare, unknown, DIGEST) != 0, descriptor, same = 0;
	unsigned char *data;
	struct stat status;

	if ((!may_be_same && !may_be_bare) || size > *most)
		return 0;
	descriptor = openat(place, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (descriptor < 0)
		return 0;
	if (fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode) && (uint64_t)status.st_size == size) {
		*most -= size;
		data = read_at(descriptor, size, 0);
		same = data && ((may_be_same && is_content(data, size, wanted->content)) ||
				(may_be_bare && bare_form_holds(data, size, wanted)));
		free(data);
	}
	close(descriptor);
	return same;
}

/* A look-up from an open folder walks one name instead of the whole path: a third of the time. */
static int files_hold(struct facts *facts)
{
	struct buffer stamps = take_bytes(facts), contents = take_bytes(facts), bare = take_bytes(facts),
		      loose = take_bytes(facts);
	const size_t step = STAMP * sizeof(uint64_t), files = stamps.length / step;
	uint64_t most = MOST_READ;
	size_t file = 0;

	for (uint32_t folders = take_count(facts); folders > 0 && !facts->bad; folders--) {
		const char *folder = take_string(facts);
		uint32_t names = take_count(facts);
		int place = names > 1 ? open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC) : -1, holds = 1;

		for (; names > 0 && holds && !facts->bad; names--, file++) {
			const char *name = take_string(facts);
			uint64_t was[STAMP], now[STAMP];
			char path[PATH_MAX];
			struct stat status;

			if (place >= 0)
				holds = snprintf(path, sizeof path, "%s", name) < (int)sizeof path;
			else
				holds = snprintf(path, sizeof path, "%s/%s", folder, name) < (int)sizeof path;
			struct digests wanted = { contents.data + file * DIGEST, bare.data + file * DIGEST,
						  loose.data + file * DIGEST };

			if (!holds || file >= files || contents.length < (file + 1) * DIGEST ||
			    bare.length < (file + 1) * DIGEST || loose.length < (file + 1) * DIGEST) {
				holds = 0;
				break;
			}
			memcpy(was, stamps.data + file * step, step);
			if (fstatat(place >= 0 ? place : AT_FDCWD, path, &status, 0) == 0)
				take_stamp(&status, now);
			else
				memset(now, 0, sizeof now);
			if (memcmp(was, now, step) != 0)
				holds = now[1] && was[1] &&
					content_holds(place >= 0 ? place : AT_FDCWD, path, was[2], now[2], &wanted, &most);
		}
		if (place >= 0)
			close(place);
		if (!holds)
			return 0;
	}
	return !facts->bad && file == files;
}

static uint32_t word_of(const char *name)
{
	static uint32_t table[256]; /* of CRC-32, as in zlib */
	uint32_t word = 0xffffffff;

	for (uint32_t i = 0; !table[255] && i < 256; i++) {
		table[i] = i;
		for (int bit = 0; bit < 8; bit++)
			table[i] = table[i] >> 1 ^ (table[i] & 1 ? 0xedb88320 : 0);
	}
	while (*name)
		word = word >> 8 ^ table[(word ^ (unsigned char)*name++) & 255];
	return ~word;
}

static int is_among(const struct buffer *words, uint32_t word)
{
	size_t low = 0, high = words->length / 4;

	while (low < high) {
		size_t middle = (low + high) / 2;
		uint32_t found;

		memcpy(&found, words->data + 4 * middle, 4);
		if (found == word)
			return 1;
		if (found < word)
			low = middle + 1;
		else
			high = middle;
	}
	return 0;
}

/* Whether a folder has exactly these of the names that matter, each a folder or not as before; -1 if it cannot be read.
   Another name with the digest of one that matters counts as that one: the worst result is a miss. */
static int listing_holds(const char *folder, const struct buffer *words, struct facts there, uint32_t count)
{
	const struct facts begin = there;
	struct dirent *entry;
	uint32_t met = 0;
	int holds = 1;
	DIR *stream = opendir(folder);

	if (!stream)
		return -1;
	while (holds && (errno = 0, entry = readdir(stream))) {
		const char *name = entry->d_name;
		struct stat status;
		int is_folder = entry->d_type == DT_DIR;

		if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0 || !is_among(words, word_of(name)))
			continue;
		if (entry->d_type == DT_LNK || entry->d_type == DT_UNKNOWN)
			is_folder = fstatat(dirfd(stream), name, &status, 0) == 0 && S_ISDIR(status.st_mode);
		holds = 0;
		there = begin;
		for (uint32_t i = 0; i < count && !holds; i++) {
			const char *known = take_string(&there);

			holds = known[0] == (is_folder ? 'd' : 'f') && strcmp(known + 1, name) == 0;
		}
		met++;
	}
	if (holds && errno)
		holds = -1;
	closedir(stream);
	return holds < 0 ? -1 : holds && met == count;
}

static int folder_holds(const char *folder, int64_t stamp, const struct buffer *words, struct facts there, int listed,
			uint32_t count)
{
	struct stat status;
	int holds;

	if (stamp != -1) {
		uint64_t now;

		if (stat(folder, &status) != 0)
			return stamp == 0;
		now = ((uint64_t)status.st_mtim.tv_sec * 1000000000u + (uint64_t)status.st_mtim.tv_nsec) ^
		      (uint64_t)status.st_ino << 8;
		if ((int64_t)(now & INT64_MAX) == stamp)
			return 1;
	}
	if (!listed)
		return 0;
	holds = listing_holds(folder, words, there, count);
	return holds < 0 ? stamp == 0 : holds;
}

static int folders_hold(struct facts *facts)
{
	struct buffer words = take_bytes(facts);

	for (uint32_t folders = take_count(facts); folders > 0; folders--) {
		const char *folder = take_string(facts);
		int64_t stamp = (int64_t)take_number(facts, 8);
		int listed = (int)take_count(facts);
		uint32_t count = take_count(facts);
		struct facts there = *facts;

		for (uint32_t i = 0; i < count && !facts->bad; i++)
			take_string(facts);
		if (facts->bad || !folder_holds(folder, stamp, &words, there, listed, count))
			return 0;
	}
	return !facts->bad;
}

/* ---------------------------------------------------------------- delivering the answer */

static int write_at_once(int descriptor, const unsigned char *data, size_t length)
{
	while (length > 0) {
		ssize_t count = write(descriptor, data, length);

		if (count < 0 && errno == EINTR)
			continue;
		if (count <= 0)
			return 0;
		data += count;
		length -= (size_t)count;
	}
	return 1;
}

/* Whether a tool would write a file of its own here. */
static int is_writable_place(const char *path)
{
	struct stat status;

	return lstat(path, &status) == 0 ? S_ISREG(status.st_mode) : errno == ENOENT;
}

/* Whether the object is already there, with the mode of a new one; if so it gets a new time, which make and ninja
   compare. */
static int renew_object(const char *path, const struct head *head, mode_t mode)
{
	int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK), same = 0;
	mode_t mask = umask(0);
	unsigned char *data;
	struct stat status;

	umask(mask);
	if (descriptor < 0)
		return 0;
	if (fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode) && (uint64_t)status.st_size == head->object_length &&
	    (status.st_mode & 07777) == (mode & ~mask)) {
		data = read_at(descriptor, head->object_length, 0);
		same = data && is_digest(data, head->object_length, head->object) && futimens(descriptor, NULL) == 0;
		free(data);
	}
	close(descriptor);
	return same;
}

static int put_object(const char *path, const struct head *head, int descriptor, mode_t mode)
{
	const char *slash = strrchr(path, '/');
	char aside[PATH_MAX];
	unsigned char *data;
	unsigned random;
	int place, done;

	if (renew_object(path, head, mode))
		return 1;
	if (getrandom(&random, sizeof random, 0) != sizeof random ||
	    snprintf(aside, sizeof aside, "%.*s.buildd-%d-%08x.tmp", slash ? (int)(slash + 1 - path) : 0, path,
		     (int)getpid(), random) >= (int)sizeof aside)
		return 0;
	data = read_at(descriptor, head->object_length, (off_t)(sizeof *head + head->facts_length));
	if (!data || !is_digest(data, head->object_length, head->object))
		return 0;
	place = open(aside, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode);
	if (place < 0)
		return 0;
	done = write_at_once(place, data, head->object_length);
	if (close(place) != 0 || !done || rename(aside, path) != 0) {
		unlink(aside);
		return 0;
	}
	free(data);
	return 1;
}

/* Write the depfile in place, as tools do, unless it is right already: ext4 takes two milliseconds for a file that was
   emptied. */
static int put_depfile(const char *path, const struct buffer *rules)
{
	int descriptor = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666), done = 0;
	mode_t mask = umask(0);
	struct stat status;

	umask(mask);
	if (descriptor < 0)
		return 0;
	if (fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode)) {
		unsigned char *data = NULL;

		if ((size_t)status.st_size == rules->length)
			data = read_at(descriptor, rules->length, 0);
		if (data && memcmp(data, rules->data, rules->length) == 0)
			done = futimens(descriptor, NULL) == 0;
		else
			done = fchmod(descriptor, 0666 & ~mask) == 0 && ftruncate(descriptor, 0) == 0 &&
			       write_at_once(descriptor, rules->data, rules->length);
		free(data);
	}
	return close(descriptor) == 0 && done;
}

/* Record a hit for the build's figures: one file a build, which may be removed while it is not locked. */
static void note(int folder, const struct buffer *record)
{
	const char *build = getenv("BUILDD_BUILD_ID");
	char name[80] = "notes/";
	size_t length = strlen(name);
	struct timespec moment = { 0, 1000000 };
	struct stat status;

	if (!build || !*build)
		build = "shims";
	for (; *build && length < 70; build++, length++) {
		int plain = (*build >= '0' && *build <= '9') || ((*build | 32) >= 'a' && (*build | 32) <= 'z');

		name[length] = plain || *build == '-' ? *build : '_';
	}
	for (int tries = 0; tries < PATIENCE_MS; tries++) {
		int file = openat(folder, name, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);

		if (file < 0)
			return;
		if (flock(file, LOCK_SH | LOCK_NB) != 0) {
			nanosleep(&moment, NULL);
		} else if (fstat(file, &status) != 0 || !S_ISREG(status.st_mode) || status.st_size > MOST_NOTES ||
			   (status.st_nlink > 0 && write(file, record->data, record->length) >= 0)) {
			close(file);
			return;
		}
		close(file);
	}
}

static void deliver(const struct head *head, struct facts *facts, int descriptor, int folder)
{
	const char *output = take_string(facts), *depfile = take_string(facts);
	mode_t mode = (mode_t)take_count(facts);
	struct buffer rules = take_bytes(facts), said = take_bytes(facts), complained = take_bytes(facts);
	struct buffer record = take_bytes(facts);

	if (facts->bad || !*output || !is_writable_place(output) || (*depfile && !is_writable_place(depfile)))
		return;
	if (!put_object(output, head, descriptor, mode & 0777) || (*depfile && !put_depfile(depfile, &rules)))
		return;
	futimens(descriptor, NULL); /* the least recently used answer is removed first */
	note(folder, &record);
	write_all(1, said.data, said.length);
	write_all(2, complained.data, complained.length);
	_exit(0);
}

/* ---------------------------------------------------------------- look up and deliver */

static void look(int folder, int descriptor, const unsigned char *question)
{
	unsigned char *data = read_at(descriptor, sizeof(struct head), 0);
	struct facts facts;
	struct stat status;
	struct head head;

	if (!data || fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode) || status.st_uid != geteuid() ||
	    (status.st_mode & 022))
		return;
	memcpy(&head, data, sizeof head);
	free(data);
	if (memcmp(head.magic, MAGIC, sizeof head.magic) != 0 || memcmp(head.question, question, DIGEST) != 0 ||
	    head.object_length > MOST_BYTES || head.facts_length > MOST_BYTES ||
	    sizeof head + head.facts_length + head.object_length != (uint64_t)status.st_size)
		return;
	data = read_at(descriptor, sizeof head + head.facts_length, 0);
	if (!data || !is_digest(data + offsetof(struct head, question),
				sizeof head + head.facts_length - offsetof(struct head, question), head.check))
		return;
	facts.at = data + sizeof head;
	facts.end = facts.at + head.facts_length;
	facts.bad = 0;
	if (files_hold(&facts) && folders_hold(&facts))
		deliver(&head, &facts, descriptor, folder);
	free(data);
}

void answer(const char *store)
{
	unsigned char asked[DIGEST];
	struct buffer question = { 0 };
	char place[PATH_MAX], name[33];
	struct stat status;
	int folder, descriptor;

	if (snprintf(place, sizeof place, "%s/answers", store) >= (int)sizeof place)
		return;
	folder = open(place, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (folder < 0)
		return;
	if (fstat(folder, &status) == 0 && status.st_uid == geteuid() && !(status.st_mode & 077) && put_question(&question, folder)) {
		digest(question.data, question.length, asked);
		for (int i = 0; i < 16; i++)
			sprintf(name + 2 * i, "%02x", asked[i]);
		descriptor = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
		if (descriptor >= 0) {
			look(folder, descriptor, asked);
			close(descriptor);
		}
	}
	free(question.data);
	close(folder);
}
