/* Checks whether a file still has its content, by BLAKE3, as the daemon digests files. Knows no answer; see answer.c.

   Source: the BLAKE3 specification, sections 2.1 to 2.5, for input without a key. */

#include <stdint.h>
#include <string.h>

#include "shim.h"

#define CHUNK 1024
#define BLOCK 64

enum { CHUNK_START = 1, CHUNK_END = 2, PARENT = 4, ROOT = 8 };

static const uint32_t IV[8] = {
	0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19,
};

static const unsigned char PERMUTED[16] = { 2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8 };

static inline uint32_t turn(uint32_t x, int n)
{
	return x >> n | x << (32 - n);
}

static inline void mix(uint32_t *v, int a, int b, int c, int d, uint32_t x, uint32_t y)
{
	v[a] += v[b] + x, v[d] = turn(v[d] ^ v[a], 16);
	v[c] += v[d], v[b] = turn(v[b] ^ v[c], 12);
	v[a] += v[b] + y, v[d] = turn(v[d] ^ v[a], 8);
	v[c] += v[d], v[b] = turn(v[b] ^ v[c], 7);
}

/* The chaining value of one block. */
static void compress(uint32_t h[8], const unsigned char *block, size_t length, uint64_t counter, uint32_t flags)
{
	uint32_t v[16], m[16], next[16];
	unsigned char whole[BLOCK] = { 0 };

	memcpy(whole, block, length);
	memcpy(m, whole, sizeof m); /* with the other byte order nothing matches */
	memcpy(v, h, 8 * sizeof *v);
	memcpy(v + 8, IV, 4 * sizeof *v);
	v[12] = (uint32_t)counter;
	v[13] = (uint32_t)(counter >> 32);
	v[14] = (uint32_t)length;
	v[15] = flags;
	for (int round = 0; round < 7; round++) {
		mix(v, 0, 4, 8, 12, m[0], m[1]);
		mix(v, 1, 5, 9, 13, m[2], m[3]);
		mix(v, 2, 6, 10, 14, m[4], m[5]);
		mix(v, 3, 7, 11, 15, m[6], m[7]);
		mix(v, 0, 5, 10, 15, m[8], m[9]);
		mix(v, 1, 6, 11, 12, m[10], m[11]);
		mix(v, 2, 7, 8, 13, m[12], m[13]);
		mix(v, 3, 4, 9, 14, m[14], m[15]);
		for (int i = 0; i < 16; i++)
			next[i] = m[PERMUTED[i]];
		memcpy(m, next, sizeof m);
	}
	for (int i = 0; i < 8; i++)
		h[i] = v[i] ^ v[i + 8];
}

/* The chaining value of a part of the tree that begins with chunk `counter`; with ROOT, the digest. */
static void subtree(const unsigned char *data, size_t length, uint64_t counter, uint32_t root, uint32_t h[8])
{
	memcpy(h, IV, sizeof IV);
	if (length <= CHUNK) {
		uint32_t start = CHUNK_START;

		for (; length > BLOCK; data += BLOCK, length -= BLOCK, start = 0)
			compress(h, data, BLOCK, counter, start);
		compress(h, data, length, counter, start | CHUNK_END | root);
	} else {
		uint32_t both[16];
		size_t left = CHUNK;

		while (left * 2 < length)
			left *= 2;
		subtree(data, left, counter, 0, both);
		subtree(data + left, length - left, counter + left / CHUNK, 0, both + 8);
		compress(h, (const unsigned char *)both, BLOCK, 0, PARENT | root);
	}
}

int is_content(const unsigned char *data, size_t length, const unsigned char *wanted)
{
	uint32_t h[8];

	subtree(data, length, 0, ROOT, h);
	return memcmp(h, wanted, sizeof h) == 0;
}
