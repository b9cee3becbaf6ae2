/* Shared by the parts of a shim. Above each group stands the file that has it. */

#include <stddef.h>
#include <stdint.h>

#define MOST_BYTES (64u << 20)
#define MARK ".buildd-launchers" /* in every folder of shims: links to the real tools, by name; "start", "place" */

struct sockaddr_un;
struct stat;

struct buffer {
	unsigned char *data;
	size_t length, room;
};

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

/* command.c */
extern char tool[];      /* absolute, or empty if none was found */
extern char **arguments; /* of the tool; the first is its path */
/* Become a program; returns where that fails. By the kernel's own call: a shim that is not linked statically loads the
   library of interpose.c too, whose execve would call the shim again. */
void execute(const char *path, char **words);
const char *find_tool(char **argv); /* Find the tool; returns the name under which the shim was called. */
void become_tool(void) __attribute__((noreturn));
const char *told_as(void); /* The name of a cmake or build tool that buildd-cc was called for; empty for others. */
void run_tool(void) __attribute__((noreturn)); /* The same, and compilers that the tool calls run without the daemon. */
extern int is_passed_through; /* the daemon has said that the tool may run even where nothing may be compiled */
void refuse(const char *why, size_t length) __attribute__((noreturn));
int recaches(void); /* whether the user asked for everything to be compiled again */
/* With which colours a compiler writes to this standard error: a value for GCC_COLORS, or empty for its own; NULL: none. */
const char *shown_colours(void);
int is_sent(const char *variable);
int is_on(const char *value, int by_default); /* whether a switch is on; it may be NULL or empty */
const char *current_folder(char *place);
void end_as(uint64_t status, uint64_t number) __attribute__((noreturn)); /* End as a tool did, by a status or by a signal. */

/* folders.c */
const char *own_path(void); /* of this program; empty where /proc does not say */
const char *shim_folder(void); /* the folder in which this shim lies */
/* Read a file of MARK beside this shim; whether there is text in it, and only this user or root can have written it. */
int read_beside(const char *name, char *text, size_t size);
/* Take the store and the runtime folder from the file "place" beside this shim if the environment names neither. */
void learn_place(void);
int is_ours(const char *folder); /* whether this is a folder of shims */
void leave_path(void); /* Take the folders of shims off PATH. */
int loads_library(void); /* whether programs in this environment load the library of interpose.c */
void forget_library(void); /* Take the library of interpose.c out of LD_PRELOAD. */

/* endpoint.c */
int slurp(const char *path, char *text, size_t size);
int find_socket(struct sockaddr_un *address); /* -1 where the daemon speaks another version of the protocol */
void forget_endpoint(void);                   /* It is read again. */
int make_runtime_folder(char *folder, size_t size);
int find_store(char *store, size_t size);
int own_store(char *store, size_t size);

/* message.c */
extern void (*on_no_memory)(void); /* called instead of returning; does not return */
void put(struct buffer *buffer, const void *data, size_t length);
void put_big(struct buffer *buffer, unsigned head, uint64_t value, int bytes);
void put_text(struct buffer *buffer, const char *text, size_t length);
void put_string(struct buffer *buffer, const char *text);
void put_number(struct buffer *buffer, uint64_t number);
int is_utf8(const char *text);
struct value take(struct reader *reader); /* The next value; behind a list or map come its items. */
struct value look_up(struct reader reader, const char *key, struct reader *inner);
int take_texts(struct reader reader, char **texts, uint64_t most);
int is_word(struct value value, const char *word);
void write_all(int descriptor, const unsigned char *data, size_t length);

/* content.c: whether this is the 32-byte BLAKE3 digest of the content. */
int is_content(const unsigned char *data, size_t length, const unsigned char *wanted);

/* digest.c */
#define DIGEST 32
void digest(const unsigned char *data, size_t length, unsigned char *out);
int is_digest(const unsigned char *data, size_t length, const unsigned char *wanted);

/* question.c */
#define OWN 1 /* in place of the path of a checkout's folder */
/* Put the question, with OWN in place of `folder`, if one is given, where the question of a command in another checkout
   has that one's; after that the question without a folder cannot be asked any more. `place` is the folder of answers. 0
   if there is no question. */
int put_question(struct buffer *question, int place, const char *folder);

/* rule.c */
struct rule {
	uint32_t targets, files;
	uint32_t source; /* index of the source among the files: an empty rule follows for each other one; `files`: none does */
	int clang;
};
/* Put a depfile's rule: the names of its targets, then those of its files. Args: `root` as in `put_own`. */
void put_rule(struct buffer *text, const struct rule *rule, const char *const *names, const char *root);
/* Put a text with the path of a folder in place of each OWN; empty: OWN stays. */
void put_own(struct buffer *text, const void *content, size_t length, const char *root);

/* answer.c: exit as the tool would, if this command has an answer and all its inputs are unchanged; else return. */
void answer(const char *store);

/* remote.c: replace what `stat` has said of a file by what it says once it is open, where the two may differ; where it has
   gone meanwhile, it is of no kind any more. Args: as of `fstatat`. */
void see_by_opening(int place, const char *path, struct stat *status);

/* host.c */
int host(struct reader command, struct value place); /* whether the program could be started */
void end_host(void);

/* configure.c */
void prepare_configure(void);

/* several.c: carry out the list of commands at `reader`, and end as they do. `folder` is for what they make. */
void run_parts(struct reader reader, struct value folder, int keeps_going) __attribute__((noreturn));

/* wrapper.c */
void run_wrapper(void) __attribute__((noreturn)); /* Run the tool; compilers that it calls run under shims. */
void look_through_wrapper(void);		  /* The same if the tool is a script of the user's; else return. */

/* start.c */
int start_daemon(int (*is_there)(void));
void show_figures(const char *cache); /* Become `buildd cache stats`, in the words of another cache; return if that fails. */
