/* calls_with FUNCTION FOLDER STACK COUNT PROGRAM NAME: calls PROGRAM under a NAME, with COUNT arguments, in a process that
   begins in FOLDER, from a thread with a STACK of so many bytes. Says what libc says. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static char **given, **arguments;

static void *call(void *nothing)
{
	const char *function = given[1], *program = given[5];
	posix_spawn_file_actions_t actions;
	int status = 0, problem = 0;
	pid_t process;

	if (strncmp(function, "posix_spawn", 11) == 0) {
		posix_spawn_file_actions_init(&actions);
		posix_spawn_file_actions_addchdir_np(&actions, given[2]);
		problem = (strcmp(function, "posix_spawnp") == 0 ? posix_spawnp : posix_spawn)(&process, program, &actions, NULL,
											       arguments, environ);
	} else {
		process = vfork();
		if (process == 0) {
			if (chdir(given[2]) == 0)
				(strcmp(function, "execvp") == 0 ? execvp : execv)(program, arguments);
			problem = errno;
			_exit(99);
		}
	}
	if (problem == 0)
		waitpid(process, &status, 0);
	printf("%s, %d\n", strerror(problem), status);
	return nothing;
}

int main(int argc, char **argv)
{
	size_t count = argc == 7 ? strtoul(argv[4], NULL, 10) : 0;
	pthread_attr_t attributes;
	pthread_t thread;

	given = argv;
	arguments = calloc(count + 2, sizeof *arguments);
	if (argc != 7 || !arguments)
		return 2;
	arguments[0] = argv[6];
	for (size_t i = 1; i <= count; i++)
		arguments[i] = "-v";
	pthread_attr_init(&attributes);
	pthread_attr_setstacksize(&attributes, strtoul(argv[3], NULL, 10));
	return pthread_create(&thread, &attributes, call, NULL) || pthread_join(thread, NULL);
}
