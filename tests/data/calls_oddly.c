/* calls_oddly HOW PROGRAM ARGUMENT...: call PROGRAM as few programs do. HOW is "plain"; "closed", without any descriptor;
   "cleared", without any variable; or a number of children that each end at once in a PROGRAM of their own. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	char *nothing[] = { NULL };
	int status, failed = 0;

	if (argc < 3)
		return 2;
	if (strcmp(argv[1], "closed") == 0)
		closefrom(0);
	if (strcmp(argv[1], "cleared") == 0)
		execve(argv[2], argv + 2, nothing);
	for (int left = atoi(argv[1]); left > 0; left--) {
		pid_t child = left % 2 ? fork() : vfork();

		if (child == 0) {
			execv(argv[2], argv + 2);
			_exit(127);
		}
		if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
			failed++;
	}
	if (atoi(argv[1]) > 0)
		return failed > 0;
	execv(argv[2], argv + 2);
	return 127;
}
