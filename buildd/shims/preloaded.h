/* preloaded.c */

#include <stddef.h>

#define LIBRARY "libbuildd-interpose.so"

#pragma GCC visibility push(hidden) /* the program may have functions of these names */
size_t count_of(char *const list[]);
const char *value_of(char *const environment[], const char *name);
/* The entry of this library in a value of LD_PRELOAD, and its length; NULL if there is none. */
const char *entry_in(const char *preload, size_t *length);
void keep_own(void); /* Keep the library's entry and buildd's variables of the environment that this process begins with. */
int is_cleared(char *const environment[]); /* whether it preloads nothing, and buildd has no variable in it */
size_t room_to_restore(char *const environment[]);
/* A cleared environment with all that was kept, in `room`. */
char *const *restored(char *const environment[], char *room);
#pragma GCC visibility pop
