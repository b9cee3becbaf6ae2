/* Direct hits: the shim itself finds, checks and delivers answers of earlier compiles, with or without a daemon.

   Knows the files that buildd/store/answers.py writes, and nothing of what a command line means. An answer counts only
   if every file and folder has its old stamp, by the rules of buildd/files/stamp_set.py, or its old content, or at least
   its old bare form (bare_text.c) where comments cannot reach the result, without the lines that hold no token where
   lines cannot; in any doubt there is no answer. An answer may be another checkout's: then its paths count from a folder
   above this one. */

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
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "../native/bare_text.h"
#include "shim.h"

#define MAGIC "buildd-answer 8\n"
#define STAMP 5
#define MOST_READ (8 << 20) /* of files with another stamp */
#define MOST_NOTES (16 << 20)
#define PATIENCE_MS 20
#define OPENAT2 437 /* on all machines; the headers of older systems have no name for it */
#define NO_LINKS 0x04
#define BENEATH 0x08

struct head {
	char magic[16];
	unsigned char check[DIGEST]; /* of everything behind it, but for the object */
	unsigned char question[DIGEST], moved[DIGEST], object[DIGEST]; /* `moved`: zeros if it holds for one folder alone */
	uint64_t object_length, facts_length;
};

/* ---------------------------------------------------------------- reading an answer */

struct facts {
	const unsigned char *at, *end;
	int bad;
	const char *root; /* the folder that OWN stands for; empty: none */
	int place;	  /* it is open here, or -1 */
	int is_moved;	  /* it is another folder than that of the command which was answered */
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

/* ---------------------------------------------------------------- the checkout's own folder */

static int is_own(const char *path)
{
	return path[0] == OWN;
}

/* A path of the checkout's own, as from its folder. */
static const char *below(const char *path)
{
	path += 1 + (path[1] == '/');
	return *path ? path : ".";
}

/* Take a path, with the folder's in place of OWN; 0 if it is too long. */
static int take_path(struct facts *facts, char path[PATH_MAX])
{
	const char *taken = take_string(facts);
	int length = is_own(taken) ? snprintf(path, PATH_MAX, "%s%s", facts->root, taken + 1)
				   : snprintf(path, PATH_MAX, "%s", taken);

	return length < PATH_MAX;
}

/* Open a folder. That of another checkout than the answered command's is found without links: what `..` means behind one,
   and whether two names are one file, was found out there. */
static int open_folder(const struct facts *facts, const char *folder, int flags)
{
	struct {
		uint64_t flags, mode, resolve;
	} how = { (uint64_t)(flags | O_DIRECTORY | O_CLOEXEC), 0, NO_LINKS | BENEATH };

	if (!is_own(folder))
		return open(folder, (int)how.flags);
	if (!facts->is_moved)
		return openat(facts->place, below(folder), (int)how.flags);
	return (int)syscall(OPENAT2, facts->place, below(folder), &how, sizeof how);
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

/* Whether one file has its old stamp or content. `place`: of its folder, if that is open. */
static int file_holds(const struct facts *facts, int place, const char *folder, const char *name, const uint64_t was[STAMP],
		      const struct digests *wanted, uint64_t *most)
{
	const int moved = facts->is_moved && is_own(folder);
	uint64_t now[STAMP] = { 0 };
	char path[PATH_MAX];
	struct stat status;

	if (place < 0 && moved)
		return errno == ENOENT && !was[1]; /* of `open_folder` */
	if (place < 0 && snprintf(path, sizeof path, "%s/%s", is_own(folder) ? below(folder) : folder, name) >=
				 (int)sizeof path)
		return 0;
	if (place >= 0)
		snprintf(path, sizeof path, "%s", name);
	else
		place = is_own(folder) ? facts->place : AT_FDCWD;
	if (fstatat(place, path, &status, moved ? AT_SYMLINK_NOFOLLOW : 0) == 0) {
		if (S_ISLNK(status.st_mode))
			return 0;
		see_by_opening(place, path, &status);
		take_stamp(&status, now);
	}
	if (memcmp(was, now, sizeof now) == 0)
		return 1;
	return now[1] && was[1] && content_holds(place, path, was[2], now[2], wanted, most);
}

/* A look-up from an open folder walks one name instead of the whole path: a third of the time. */
static int files_hold(struct facts *facts)
{
	struct buffer stamps = take_bytes(facts), contents = take_bytes(facts), bare = take_bytes(facts),
		      loose = take_bytes(facts);
	const size_t step = STAMP * sizeof(uint64_t), files = stamps.length / step;
	uint64_t most = MOST_READ;
	size_t file = 0;

	if (contents.length < files * DIGEST || bare.length < files * DIGEST || loose.length < files * DIGEST)
		return 0;
	for (uint32_t folders = take_count(facts); folders > 0 && !facts->bad; folders--) {
		const char *folder = take_string(facts);
		uint32_t names = take_count(facts);
		int place = -1, holds = 1;

		if (names > 1 || (facts->is_moved && is_own(folder)))
			place = open_folder(facts, folder, O_PATH);
		for (; names > 0 && holds && !facts->bad; names--, file++) {
			const char *name = take_string(facts);
			struct digests wanted = { contents.data + file * DIGEST, bare.data + file * DIGEST,
						  loose.data + file * DIGEST };
			uint64_t was[STAMP];

			if (file >= files) {
				holds = 0;
				break;
			}
			memcpy(was, stamps.data + file * step, step);
			holds = file_holds(facts, place, folder, name, was, &wanted, &most);
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
	struct stat status;
	uint32_t met = 0;
	int holds = 1, place = open_folder(&there, folder, O_RDONLY);
	DIR *stream = place < 0 || fstatat(place, ".", &status, 0) != 0 ? NULL : fdopendir(place); /* one that may be searched */

	if (!stream) {
		if (place >= 0)
			close(place);
		return -1;
	}
	while (holds && (errno = 0, entry = readdir(stream))) {
		const char *name = entry->d_name;
		int is_folder = entry->d_type == DT_DIR;

		if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0 || !is_among(words, word_of(name)))
			continue;
		if (entry->d_type == DT_LNK || entry->d_type == DT_UNKNOWN) {
			if (fstatat(dirfd(stream), name, &status, 0) != 0)
				continue; /* compilers pass over a link that leads nowhere */
			is_folder = S_ISDIR(status.st_mode);
		}
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

static int folder_holds(const struct facts *facts, const char *folder, int64_t stamp, const struct buffer *words, int listed,
			uint32_t count)
{
	struct stat status;
	int holds;

	if (facts->is_moved && is_own(folder)) {
		if (listed)
			return listing_holds(folder, words, *facts, count) > 0;
		holds = open_folder(facts, folder, O_PATH);
		if (holds >= 0)
			close(holds);
		return stamp == 0 && holds < 0 && errno == ENOENT;
	}
	if (stamp != -1) {
		uint64_t now;

		if ((is_own(folder) ? fstatat(facts->place, below(folder), &status, 0) : stat(folder, &status)) != 0)
			return stamp == 0;
		now = ((uint64_t)status.st_mtim.tv_sec * 1000000000u + (uint64_t)status.st_mtim.tv_nsec) ^
		      (uint64_t)status.st_ino << 8;
		if ((int64_t)(now & INT64_MAX) == stamp)
			return 1;
	}
	if (!listed)
		return 0;
	holds = listing_holds(folder, words, *facts, count);
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
		if (facts->bad || !folder_holds(&there, folder, stamp, &words, listed, count))
			return 0;
	}
	return !facts->bad;
}

/* ---------------------------------------------------------------- the depfile */

/* Take the depfile's content: it is given, or its names are, since lines end by the length of paths. */
static struct buffer take_rules(struct facts *facts)
{
	struct rule rule = { .targets = take_count(facts) };
	const char **names;
	struct buffer text = { 0 };

	if (!rule.targets)
		return take_bytes(facts);
	rule.files = take_count(facts);
	rule.source = take_count(facts);
	rule.clang = (int)take_count(facts);
	if ((uint64_t)(facts->end - facts->at) < (uint64_t)rule.targets + rule.files) {
		facts->bad = 1; /* each name has a final zero byte */
		return text;
	}
	names = calloc((size_t)rule.targets + rule.files, sizeof *names);
	for (uint32_t i = 0; names && i < rule.targets + rule.files; i++)
		names[i] = take_string(facts);
	if (names && !facts->bad)
		put_rule(&text, &rule, names, facts->root);
	else
		facts->bad = 1;
	free(names);
	return text;
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

/* Write the depfile in place, as tools do (one that is there keeps its mode and its other names), unless it is right
   already: ext4 takes two milliseconds for a file that was emptied. */
static int put_depfile(const char *path, const struct buffer *rules)
{
	int descriptor = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666), done = 0;
	struct stat status;

	if (descriptor < 0)
		return 0;
	if (fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode)) {
		unsigned char *data = NULL;

		if ((size_t)status.st_size == rules->length)
			data = read_at(descriptor, rules->length, 0);
		if (data && memcmp(data, rules->data, rules->length) == 0)
			done = futimens(descriptor, NULL) == 0;
		else
			done = ftruncate(descriptor, 0) == 0 && write_at_once(descriptor, rules->data, rules->length);
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

/* Write what the tool said. */
static void say(int descriptor, const struct buffer *words, const char *root)
{
	struct buffer said = { 0 };

	put_own(&said, words->data, words->length, root);
	write_all(descriptor, said.data, said.length);
}

static void deliver(const struct head *head, struct facts *facts, int descriptor, int folder)
{
	char output[PATH_MAX], depfile[PATH_MAX];
	int are_short = take_path(facts, output) && take_path(facts, depfile);
	mode_t mode = (mode_t)take_count(facts);
	struct buffer rules = take_rules(facts), said = take_bytes(facts), complained = take_bytes(facts);
	struct buffer record = take_bytes(facts);

	if (facts->bad || !are_short || !*output || !is_writable_place(output) || (*depfile && !is_writable_place(depfile)))
		return;
	if (!put_object(output, head, descriptor, mode & 0777) || (*depfile && !put_depfile(depfile, &rules)))
		return;
	futimens(descriptor, NULL); /* the least recently used answer is removed first */
	note(folder, &record);
	say(1, &said, facts->root);
	say(2, &complained, facts->root);
	_exit(0);
}

/* ---------------------------------------------------------------- look up and deliver */

/* Deliver an answer if it is one to this question and holds.

   Args: `moved` is the folder of this checkout if the question names it by OWN. */
static void look(int folder, int descriptor, const unsigned char *question, const char *moved)
{
	unsigned char *data = read_at(descriptor, sizeof(struct head), 0);
	struct facts facts = { 0 };
	struct stat status;
	struct head head;

	if (!data || fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode) || status.st_uid != geteuid() ||
	    (status.st_mode & 022))
		return;
	memcpy(&head, data, sizeof head);
	free(data);
	if (memcmp(head.magic, MAGIC, sizeof head.magic) != 0 ||
	    memcmp(moved ? head.moved : head.question, question, DIGEST) != 0 || head.object_length > MOST_BYTES ||
	    head.facts_length > MOST_BYTES ||
	    sizeof head + head.facts_length + head.object_length != (uint64_t)status.st_size)
		return;
	data = read_at(descriptor, sizeof head + head.facts_length, 0);
	if (!data || !is_digest(data + offsetof(struct head, question),
				sizeof head + head.facts_length - offsetof(struct head, question), head.check))
		return;
	facts.at = data + sizeof head;
	facts.end = facts.at + head.facts_length;
	facts.root = take_string(&facts);
	facts.is_moved = moved && strcmp(moved, facts.root) != 0;
	if (facts.is_moved)
		facts.root = moved;
	facts.place = *facts.root ? open(facts.root, O_PATH | O_DIRECTORY | O_CLOEXEC) : -1;
	if ((!*facts.root || facts.place >= 0) && files_hold(&facts) && folders_hold(&facts))
		deliver(&head, &facts, descriptor, folder);
	if (facts.place >= 0)
		close(facts.place);
	free(data);
}

/* Ask one question. Returns the inode of the answer that did not hold; 0 if there is none, or if it is `known`. */
static ino_t ask(int folder, const char *moved, ino_t known)
{
	struct buffer question = { 0 };
	unsigned char asked[DIGEST];
	struct stat status;
	char name[33];
	int descriptor;

	if (!put_question(&question, folder, moved)) {
		free(question.data);
		return 0;
	}
	digest(question.data, question.length, asked);
	free(question.data);
	for (int i = 0; i < 16; i++)
		sprintf(name + 2 * i, "%02x", asked[i]);
	descriptor = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	if (descriptor < 0)
		return 0;
	if (fstat(descriptor, &status) == 0 && status.st_ino != known)
		look(folder, descriptor, asked, moved);
	close(descriptor);
	return status.st_ino;
}

/* Whether a folder's path stands for itself in every text: as `_PLAIN` of codegen/compilers/checkout_roots.py. */
static int is_plain(const char *folder)
{
	for (; *folder; folder++)
		if (!(*folder >= 'a' && *folder <= 'z') && !(*folder >= 'A' && *folder <= 'Z') &&
		    !(*folder >= '0' && *folder <= '9') && !strchr("_/.+@~-", *folder))
			return 0;
	return 1;
}

/* Ask whether another checkout has an answer: each folder above this one may be the checkout's. */
static void ask_others(int folder, ino_t known)
{
	static const char *const systems[] = { "/usr", "/lib", "/lib64", "/opt", NULL };
	char here[PATH_MAX], *slash;

	if (!getcwd(here, sizeof here) || !is_plain(here))
		return;
	for (int i = 0; systems[i]; i++)
		if (strncmp(here, systems[i], strlen(systems[i])) == 0 && strchr("/", here[strlen(systems[i])]))
			return;
	for (; (slash = strrchr(here, '/')) != NULL && slash[1]; *slash = 0)
		ask(folder, here, known);
}

void answer(const char *store)
{
	char place[PATH_MAX];
	struct stat status;
	int folder;

	if (snprintf(place, sizeof place, "%s/answers", store) >= (int)sizeof place)
		return;
	folder = open(place, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (folder < 0)
		return;
	if (fstat(folder, &status) == 0 && status.st_uid == geteuid() && !(status.st_mode & 077))
		ask_others(folder, ask(folder, NULL, 0));
	close(folder);
}
