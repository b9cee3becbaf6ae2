/* Finds the daemon's socket and its store without asking anybody: protocol/SPEC.md, section 1. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "shim.h"

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

/* Read a file, without white space at its end and with a final zero; its length, or -1. */
int slurp(const char *path, char *text, size_t size)
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

/* Whether logout leaves a folder below /run/user alone: systemd then has a file for this user. */
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

/* The runtime folder of this boot, mount and pid namespace, and the one that it lies in. */
static int find_folder(char *base, size_t base_size, char *folder, size_t size)
{
	char text[128], boot[64];
	uint32_t digest[8];

	if (!find_base(base, base_size))
		return 0;
	if (slurp("/proc/sys/kernel/random/boot_id", boot, sizeof boot) < 0)
		boot[0] = 0;
	snprintf(text, 120, "%s|%lu|%lu", boot, inode("/proc/self/ns/mnt"), inode("/proc/self/ns/pid"));
	sha256(text, digest);
	return snprintf(folder, size, "%s/%08x%04x", base, digest[0], digest[1] >> 16) < (int)size;
}

int make_runtime_folder(char *folder, size_t size)
{
	char base[PATH_MAX];

	if (!find_folder(base, sizeof base, folder, size))
		return 0;
	mkdir(base, 0700);
	mkdir(folder, 0700);
	return is_private(base) && is_private(folder);
}

static char endpoint_text[8192];
static int endpoint_known, endpoint_foreign;

void forget_endpoint(void)
{
	endpoint_known = endpoint_foreign = 0;
	endpoint_text[0] = 0;
}

/* The daemon's endpoint file, read once; empty if there is none of a protocol version that the shim speaks. */
static const char *endpoint(void)
{
	char base[PATH_MAX], folder[PATH_MAX + 16], file[PATH_MAX + 32], *field;

	if (endpoint_known++ || !find_folder(base, sizeof base, folder, sizeof folder))
		return endpoint_text;
	snprintf(file, sizeof file, "%s/endpoint.json", folder);
	if (!is_private(base) || !is_private(folder) || slurp(file, endpoint_text, sizeof endpoint_text) < 0)
		endpoint_text[0] = 0;
	field = strstr(endpoint_text, "\"protocol\":");
	endpoint_foreign = field && strtol(field + 11, NULL, 10) != 1;
	if (endpoint_foreign)
		endpoint_text[0] = 0;
	return endpoint_text;
}

/* The path of the daemon's work socket. */
int find_socket(struct sockaddr_un *address)
{
	const char *field = strstr(endpoint(), "\"work\":");
	size_t length;

	if (!field || !(field = strstr(field + 7, "\"ipc://")))
		return endpoint_foreign ? -1 : 0;
	field += 7;
	length = strcspn(field, "\"");
	if (length >= sizeof address->sun_path || memchr(field, '\\', length))
		return 0;
	address->sun_family = AF_UNIX;
	memcpy(address->sun_path, field, length);
	address->sun_path[length] = 0;
	return 1;
}

/* The store of this environment: the one that it names, or the one in its home, if there is one. */
int own_store(char *store, size_t size)
{
	const char *named = getenv("BUILDD_DIR"), *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
	char index[PATH_MAX];
	struct stat status;

	if (named && named[0] == '/')
		return snprintf(store, size, "%s", named) < (int)size;
	if (!cache || cache[0] != '/') {
		if (!home || home[0] != '/')
			return 0;
		if (snprintf(store, size, "%s/.cache/buildd", home) >= (int)size)
			return 0;
	} else if (snprintf(store, size, "%s/buildd", cache) >= (int)size)
		return 0;
	return snprintf(index, sizeof index, "%s/index.db", store) < (int)sizeof index && stat(index, &status) == 0 &&
	       status.st_uid == geteuid(); /* sudo may keep another user's HOME */
}

/* The store that the daemon will use: the one that the shim names, else the daemon's own. */
int find_store(char *store, size_t size)
{
	const char *field;
	size_t length;

	if (own_store(store, size))
		return 1;
	field = strstr(endpoint(), "\"store\":\"");
	if (!field)
		return 0;
	length = strcspn(field += 9, "\"");
	return !memchr(field, '\\', length) && snprintf(store, size, "%.*s", (int)length, field) < (int)size;
}
