/* A program's file, as far as interpose.c asks (program_file.c). */

/* Whether the kernel can run this file: a program of this architecture, or a script with its interpreter. */
__attribute__((visibility("hidden"))) int is_program(const char *path);

/* Whether a program must be loaded without this library. */
__attribute__((visibility("hidden"))) int is_harmed(const char *path);
