/* calls FUNCTION PROGRAM: compile a.c with PROGRAM, called by one of libc's functions, or without libc. */
#define _GNU_SOURCE
#include <errno.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static int wait_for(pid_t process)
{
	int status = 0;

	waitpid(process, &status, 0);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 99;
}

int main(int argc, char **argv)
{
	const char *function = argv[1], *program = argv[2], *name = strrchr(argv[2], '/');
	char *arguments[] = { "gcc", "-c", "a.c", "-o", "a.o", NULL };
	char text[4096];
	pid_t process;
	int problem;

	if (argc != 3)
		return 2;
	name = name && access(program, F_OK) == 0 ? name + 1 : program;
	if (strcmp(function, "execv") == 0)
		execv(program, arguments);
	else if (strcmp(function, "execve") == 0)
		execve(program, arguments, environ);
	else if (strcmp(function, "syscall") == 0)
		syscall(SYS_execve, program, arguments, environ);
	else if (strcmp(function, "execvp") == 0)
		execvp(name, arguments);
	else if (strcmp(function, "execvpe") == 0)
		execvpe(name, arguments, environ);
	else if (strcmp(function, "execl") == 0)
		execl(program, "gcc", "-c", "a.c", "-o", "a.o", NULL);
	else if (strcmp(function, "execlp") == 0)
		execlp(name, "gcc", "-c", "a.c", "-o", "a.o", NULL);
	else if (strcmp(function, "execle") == 0)
		execle(program, "gcc", "-c", "a.c", "-o", "a.o", NULL, environ);
	else if (strcmp(function, "system") == 0) {
		snprintf(text, sizeof text, "%s -c a.c -o a.o", program);
		return WEXITSTATUS(system(text));
	} else if (strcmp(function, "vfork") == 0) {
		process = vfork();
		if (process == 0) {
			execv(program, arguments);
			_exit(errno);
		}
		return wait_for(process);
	} else {
		problem = strcmp(function, "posix_spawnp") == 0
				  ? posix_spawnp(&process, name, NULL, NULL, arguments, environ)
				  : posix_spawn(&process, program, NULL, NULL, arguments, environ);
		return problem ? problem : wait_for(process);
	}
	return errno;
}
