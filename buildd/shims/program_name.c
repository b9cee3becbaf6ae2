/* What a program's name and first arguments say: whether a call is one of a compiler, or of another compiler cache that is
   to compile.

   Shared by the library of interpose.c and the shim. Allocates nothing: it is called between vfork and exec. */

#define _GNU_SOURCE
#include <stddef.h>
#include <string.h>

#include "program_name.h"

static int digits(const char *text, size_t length)
{
	for (size_t i = 0; i < length; i++)
		if ((text[i] < '0' || text[i] > '9') && (i == 0 || text[i] != '.'))
			return 0;
	return length > 0;
}

/* Whether this ends the name of a compiler that a wrapper of its name has moved aside. */
static int is_moved(const char *ending)
{
	static const char *const endings[] = { "real", "orig", "distrib" };

	for (size_t i = 0; i < sizeof endings / sizeof endings[0]; i++)
		if ((*ending == '-' || *ending == '.') && strcmp(ending + 1, endings[i]) == 0)
			return 1;
	return 0;
}

/* Whether this is the name of a compiler: gcc, x86_64-linux-gnu-g++-12, clang-15, g++-real, nvcc ... As in
   codegen/foreign/command_line.py. */
int is_compiler(const char *name)
{
	static const char *const plain[] = { "gcc", "g++", "cc", "c++", "clang", "clang++", "hipcc", "nvcc" };
	static const char *const versioned[] = { "gcc", "g++", "cc", "c++", "clang", "clang++" };
	const char *triplet = strstr(name, "-linux-gnu-");
	size_t length;

	for (size_t i = 0; i < sizeof plain / sizeof plain[0]; i++)
		if (strcmp(name, plain[i]) == 0)
			return 1;
	if (triplet)
		name = triplet + strlen("-linux-gnu-");
	for (size_t i = 0; i < sizeof versioned / sizeof versioned[0]; i++) {
		length = strlen(versioned[i]);
		if (strncmp(name, versioned[i], length) != 0)
			continue;
		if (name[length] == 0 || is_moved(name + length) ||
		    (name[length] == '-' && digits(name + length + 1, strlen(name + length + 1))))
			return 1;
	}
	return 0;
}

const char *base_of(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? slash + 1 : path;
}

int is_builder(const char *name)
{
	return strcmp(name, "make") == 0 || strcmp(name, "gmake") == 0 || strcmp(name, "ninja") == 0;
}

int configures(char *const arguments[])
{
	static const char *const others[] = { "--build", "--install", "--open", "--workflow", "--find-package",
					      "--version", "--help", "-E", "-P", "-N" };

	for (char *const *argument = arguments; *argument; argument++)
		for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
			if (strcmp(*argument, others[i]) == 0)
				return 0;
	return arguments[0] != NULL;
}

int is_other_cache(const char *name)
{
	return strcmp(name, "ccache") == 0 || strcmp(name, "sccache") == 0;
}

int asks_for_figures(char *const arguments[])
{
	return arguments[0] && (strcmp(arguments[0], "-s") == 0 || strcmp(arguments[0], "--show-stats") == 0) && !arguments[1];
}

char *const *compiler_behind(char *const arguments[])
{
	while (*arguments && strchr(*arguments, '=') && **arguments != '-' && **arguments != '/')
		arguments++; /* ccache takes settings there */
	return *arguments && is_compiler(base_of(*arguments)) ? arguments : NULL;
}
