/* Hosts the tools of this compile: the daemon's program that starts them runs below the shim, and so inside its limits.

   See protocol/SPEC.md, "host". Knows neither tools nor the wire to that program. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shim.h"

#define MOST_WORDS 16
#define DESCRIPTOR 3
#define END_MS 3000
#define POLL_MS 2

static pid_t program;

static void __attribute__((noreturn)) begin(char **words, const struct sockaddr_un *address)
{
	char *nothing[] = { NULL };
	int null = open("/dev/null", O_RDWR), connection = socket(AF_UNIX, SOCK_SEQPACKET, 0);
	int high = fcntl(connection, F_DUPFD, 10);

	setsid(); /* Ctrl-C ends the shim, and so the program, which ends the tools */
	if (high < 0 || connect(high, (const struct sockaddr *)address, sizeof *address) != 0 || chdir("/") != 0)
		_exit(127);
	for (int stream = 0; stream < 3; stream++)
		dup2(null, stream);
	dup2(high, DESCRIPTOR);
	for (int other = DESCRIPTOR + 1; other <= high; other++)
		close(other);
	/* By the kernel's own call, as `execute`: the library of interpose.c would take this for a cleared environment. */
	syscall(SYS_execve, words[0], words, nothing);
	_exit(127);
}

int host(struct reader command, struct value place)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	char *words[MOST_WORDS + 1];

	if (program > 0 || place.kind != TEXT || place.length >= sizeof address.sun_path ||
	    !take_texts(command, words, MOST_WORDS))
		return 0;
	memcpy(address.sun_path, place.text, place.length);
	program = fork();
	if (program == 0)
		begin(words, &address);
	return program > 0;
}

/* Wait for the program, which ends when the request has: left behind, it would be a zombie where nobody collects them. */
void end_host(void)
{
	for (int waited = 0; program > 0 && waitpid(program, NULL, WNOHANG) == 0; waited += POLL_MS) {
		if (waited >= END_MS)
			kill(program, SIGKILL);
		poll(NULL, 0, POLL_MS);
	}
	program = 0;
}
