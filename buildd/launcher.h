/* What the parts of a stand-in have in common: launcher.c asks the daemon, answer.c needs none. */

#include <stddef.h>

#define MOST_BYTES (64u << 20)

struct buffer {
	unsigned char *data;
	size_t length, room;
};

extern char tool[];      /* absolute, or empty where none was found */
extern char **arguments; /* of the tool; the first is its path */

void run_tool(void) __attribute__((noreturn));
void put(struct buffer *buffer, const void *data, size_t length);
void write_all(int descriptor, const unsigned char *data, size_t length);
int is_sent(const char *variable);
const char *current_folder(char *place);

/* Whether this is the BLAKE3 digest, of 32 bytes, of that; see content.c. */
int is_content(const unsigned char *data, size_t length, const unsigned char *wanted);

/* Ends as the tool would, if this command was answered before and everything is as it was then; else returns. */
void answer(const char *store);
