/* Names of programs (program_name.c). */

#define LOCAL __attribute__((visibility("hidden")))

LOCAL int is_compiler(const char *name);
LOCAL const char *base_of(const char *path);

/* Whether this is the name of a build tool that shares tokens: one of those in shim_folders.py. */
LOCAL int is_builder(const char *name);

/* Whether these arguments have cmake configure a tree, and not build, install, or run a script. */
LOCAL int configures(char *const arguments[]);

/* Whether this is the name of another compiler cache, which runs the compiler that follows. */
LOCAL int is_other_cache(const char *name);

/* Whether these arguments of such a cache ask for its figures. */
LOCAL int asks_for_figures(char *const arguments[]);

/* The compiler's place among these arguments of such a cache; NULL if they name none that buildd knows. */
LOCAL char *const *compiler_behind(char *const arguments[]);
