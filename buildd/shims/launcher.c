/* The shim: takes a compiler's place on PATH and asks the daemon to compile. See protocol/SPEC.md, "Shims".

   Knows the wire (ZMTP 3.1 with mechanism NULL, MessagePack) and nothing of what a command line means. Answers known
   questions without the daemon if it can (answer.c). Whenever anything is wrong, `run_tool` runs the tool itself, as if
   this program were not there. Under the name buildd-cc, the tool is its first argument. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "program_name.h"
#include "shim.h"

#define WELCOME_MS 5000
#define SMALL_FILE_BYTES (1u << 30)
#define WOULD_COMPILE "would-compile" /* the daemon's code for a call that a proof must not run */
#define WRAPPER "wrapper:" /* the daemon's reason to pass through a call of a compiler that calls another */

extern char **environ;

/* ---------------------------------------------------------------- the request */

/* Frames of one message: the magic, then a MessagePack map. */
static void put_message(struct buffer *out, const struct buffer *body)
{
	put(out, "\1\7buildd1", 9);
	put_big(out, 2, body->length, 8);
	put(out, body->data, body->length);
}

static void put_hello(struct buffer *out)
{
	struct buffer body = { 0 };
	char text[1024], *field = NULL;
	int blanks = 0;

	if (slurp("/proc/self/stat", text, sizeof text) > 0)
		field = strrchr(text, ')');
	for (; field && *field && blanks < 20; field++)
		blanks += *field == ' ';
	put_big(&body, 0x86, 0, 0);
	put_string(&body, "type"), put_string(&body, "hello");
	put_string(&body, "version"), put_number(&body, 1);
	put_string(&body, "client"), put_string(&body, "buildd-launcher/1");
	put_string(&body, "pid"), put_number(&body, (uint64_t)getpid());
	put_string(&body, "start_ticks"), put_number(&body, field ? strtoull(field, NULL, 10) : 0);
	put_string(&body, "capabilities"), put_big(&body, 0x91, 0, 0), put_string(&body, "host");
	put_message(out, &body);
}

static void put_submit(struct buffer *out)
{
	struct buffer body = { 0 };
	unsigned char random[16];
	char id[33], place[PATH_MAX], store[PATH_MAX];
	const char *folder = current_folder(place), *build = getenv("BUILDD_BUILD_ID"), *colours = shown_colours();
	uint32_t count = 0;
	mode_t mask = umask(0);

	umask(mask);
	if (!folder || getrandom(random, sizeof random, 0) != sizeof random)
		run_tool();
	for (int i = 0; i < 16; i++)
		sprintf(id + 2 * i, "%02x", random[i]);
	if (!build || !*build || !is_utf8(build))
		build = "shims";
	if (!own_store(store, sizeof store))
		store[0] = 0;
	put_big(&body, 0x82, 0, 0);
	put_string(&body, "type"), put_string(&body, "submit");
	put_string(&body, "request");
	put_big(&body, 0x8c, 0, 0);
	put_string(&body, "request_id"), put_string(&body, id);
	put_string(&body, "build_id"), put_string(&body, build);
	put_string(&body, "project"), put_string(&body, folder);
	put_string(&body, "file"), put_string(&body, "");
	put_string(&body, "mode"), put_string(&body, "compile");
	put_string(&body, "on_disconnect"), put_string(&body, "cancel");
	put_string(&body, "store"), put_string(&body, store);
	put_string(&body, "umask"), put_number(&body, mask);
	put_string(&body, "recache");
	put_big(&body, recaches() ? 0xc3 : 0xc2, 0, 0);
	put_string(&body, "colours");
	if (colours && is_utf8(colours))
		put_string(&body, colours);
	else
		put_big(&body, 0xc0, 0, 0);
	while (arguments[count])
		count++;
	put_string(&body, "command");
	put_big(&body, 0xdd, count, 4);
	put_string(&body, tool);
	for (uint32_t i = 1; i < count; i++) {
		if (!is_utf8(arguments[i]))
			run_tool();
		put_string(&body, arguments[i]);
	}
	count = 0;
	for (char **variable = environ; *variable; variable++)
		count += is_sent(*variable) && strchr(*variable, '=');
	put_string(&body, "environment");
	put_big(&body, 0xdf, count, 4);
	for (char **variable = environ; *variable; variable++) {
		const char *value = strchr(*variable, '=');

		if (!value || !is_sent(*variable))
			continue;
		if (!is_utf8(*variable))
			run_tool();
		put_text(&body, *variable, (size_t)(value - *variable));
		put_string(&body, value + 1);
	}
	if (!is_utf8(folder) || !is_utf8(tool) || !is_utf8(store) || body.length > MOST_BYTES)
		run_tool();
	put_message(out, &body);
}

/* ---------------------------------------------------------------- the daemon's events */

static struct buffer said[2]; /* standard output and error, held until it is sure that the tool itself will not run */

/* Whether the daemon has welcomed the shim. Does not return if this message ends the request. */
static int heard(const unsigned char *data, size_t length)
{
	struct reader message = { data, data + length, 0 }, body, field;
	struct value type = look_up(message, "type", &field), inner;

	if (is_word(type, "welcome"))
		return 1;
	if (is_word(type, "error") || is_word(type, "refused"))
		run_tool();
	if (!is_word(type, "event") || look_up(message, "body", &body).kind != MAP)
		return 0;
	type = look_up(body, "type", &field);
	if (is_word(type, "tool_output")) {
		int stream = is_word(look_up(body, "stream", &field), "stderr");

		inner = look_up(body, "data", &field);
		if (inner.kind == TEXT)
			put(&said[stream], inner.text, inner.length);
	} else if (is_word(type, "host")) {
		inner = look_up(body, "socket", &message);
		look_up(body, "command", &field);
		if (!host(field, inner))
			run_tool();
	} else if (is_word(type, "done")) {
		struct value status = look_up(body, "exit_status", &field), number = look_up(body, "signal", &field);
		struct value outcome = look_up(body, "outcome", &field);

		struct value message = look_up(body, "message", &field), code = look_up(body, "code", &field);

		if (is_word(outcome, "refused") && is_word(code, WOULD_COMPILE))
			refuse(message.kind == TEXT ? (const char *)message.text : "", message.kind == TEXT ? message.length : 0);
		if (is_word(outcome, "refused") && message.kind == TEXT && message.length >= sizeof WRAPPER - 1 &&
		    memcmp(message.text, WRAPPER, sizeof WRAPPER - 1) == 0)
			run_wrapper();
		if (is_word(outcome, "refused") && look_up(body, "commands", &field).number > 0) {
			struct reader ignored;

			inner = look_up(body, "keeps_going", &ignored);
			run_parts(field, look_up(body, "folder", &ignored), inner.number != 0);
		}
		is_passed_through = is_word(outcome, "refused");
		if (!is_word(outcome, "built") && !(is_word(outcome, "failed") && (status.number || number.number)))
			run_tool();
		write_all(1, said[0].data, said[0].length);
		write_all(2, said[1].data, said[1].length);
		end_host();
		end_as(status.number, number.number);
	}
	return 0;
}

/* Take whole frames off the front of the input; returns the number of bytes used. */
static size_t take_frames(const struct buffer *in, size_t start, int *welcomed)
{
	while (in->length - start >= 2) {
		const unsigned char *frame = in->data + start;
		uint64_t length = frame[1];
		size_t head = 2;

		if (frame[0] & 2) {
			if (in->length - start < 9)
				break;
			length = 0;
			head = 9;
			for (int i = 1; i < 9; i++)
				length = length << 8 | frame[i];
		}
		if (length > MOST_BYTES)
			run_tool();
		if (in->length - start < head + length)
			break;
		if (!(frame[0] & 5)) /* the last frame of a message, not a command */
			*welcomed |= heard(frame + head, length);
		start += head + length;
	}
	return start;
}

static int send_all(int connection, const struct buffer *out)
{
	for (size_t sent = 0; sent < out->length;) {
		ssize_t written = send(connection, out->data + sent, out->length - sent, MSG_NOSIGNAL);

		if (written < 0 && errno == EINTR)
			continue;
		if (written <= 0)
			return 0;
		sent += (size_t)written;
	}
	return 1;
}

/* Whether more input came; waits at most `most_ms`, for ever if that is -1. */
static int receive(int connection, struct buffer *in, int most_ms)
{
	struct pollfd readable = { connection, POLLIN, 0 };
	unsigned char piece[16384];
	ssize_t length;
	int count;

	do
		count = poll(&readable, 1, most_ms);
	while (count < 0 && errno == EINTR);
	if (count <= 0)
		return 0;
	do
		length = read(connection, piece, sizeof piece);
	while (length < 0 && errno == EINTR);
	if (length <= 0)
		return 0;
	put(in, piece, (size_t)length);
	return 1;
}

static void ask(int connection)
{
	static const unsigned char ready[] = "\4\x1c\5READY\13Socket-Type\0\0\0\6DEALER";
	unsigned char greeting[64] = { 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0x7f, 3, 1, 'N', 'U', 'L', 'L' };
	struct buffer first = { greeting, sizeof greeting, 0 }, out = { 0 }, in = { 0 };
	struct timeval most = { WELCOME_MS / 1000, 0 };
	size_t used = sizeof greeting;
	int welcomed = 0;

	setsockopt(connection, SOL_SOCKET, SO_SNDTIMEO, &most, sizeof most);
	if (!send_all(connection, &first))
		return;
	put(&out, ready, sizeof ready - 1);
	put_hello(&out);
	put_submit(&out);
	/* libzmq hangs up on a peer whose messages arrive in one piece with its greeting. */
	while (in.length < sizeof greeting)
		if (!receive(connection, &in, WELCOME_MS))
			return;
	if (!send_all(connection, &out))
		return;
	do
		used = take_frames(&in, used, &welcomed);
	while (receive(connection, &in, welcomed ? -1 : WELCOME_MS));
}

/* ---------------------------------------------------------------- build tools: make, ninja */

/* Whether this is make's -j without a number: as many jobs as there are. */
static int is_unbounded(char **argument)
{
	return (strcmp(*argument, "-j") == 0 || strcmp(*argument, "--jobs") == 0) &&
	       !(argument[1] && argument[1][0] >= '0' && argument[1][0] <= '9');
}

/* Name the jobserver of `buildd run` in MAKEFLAGS, unless there is one, or the tool has its own -j. If make takes only
   open pipes (up to 4.3), ninja gets none: it cannot use pipes, and would pass them on to every make that it calls. */
static void offer_tokens(const char *name)
{
	const char *tokens = getenv("BUILDD_JOBSERVER"), *flags = getenv("MAKEFLAGS");
	char text[PATH_MAX + 4096], **unbounded = NULL;
	int fifo[2], by_pipe, unasked = tokens && strncmp(tokens, "unasked:", 8) == 0;

	if (!tokens || !*tokens || (flags && strstr(flags, "--jobserver")))
		return;
	tokens += unasked ? 8 : 0;
	for (char **argument = arguments + 1; *argument; argument++) {
		if (strncmp(*argument, "-j", 2) != 0 && strncmp(*argument, "--jobs", 6) != 0)
			continue;
		if (!unasked || !is_unbounded(argument))
			return;
		unbounded = argument;
	}
	/* A make that was not asked to do several things at once does one: not every makefile can bear more. */
	if (unasked && !unbounded && strcmp(name, "ninja") != 0)
		return;
	for (char **argument = unbounded; argument && *argument; argument++)
		argument[0] = argument[1];
	by_pipe = strncmp(tokens, "pipe:", 5) == 0;
	if (by_pipe && strcmp(name, "ninja") == 0)
		return;
	if (by_pipe) {
		/* Left open: the tool's children need them too. */
		for (int i = 0; i < 2; i++)
			if ((fifo[i] = open(tokens + 5, O_RDWR)) < 0)
				return;
		snprintf(text, sizeof text, "%s --jobserver-auth=%d,%d", flags ? flags : "", fifo[0], fifo[1]);
	} else {
		snprintf(text, sizeof text, "%s --jobserver-auth=fifo:%s", flags ? flags : "", tokens);
	}
	setenv("MAKEFLAGS", text, 1);
}

/* Whether the kernel would treat this process's files in a way that no other process can repeat: its umask lets it not
   open what it has made, or its limit on the size of files is one that objects reach. */
static int is_confined(void)
{
	mode_t mask = umask(0);
	struct rlimit most;

	umask(mask);
	return (mask & 0700) || (getrlimit(RLIMIT_FSIZE, &most) == 0 && most.rlim_cur < SMALL_FILE_BYTES);
}

/* ---------------------------------------------------------------- the way to the daemon */

static int connection = -1;

/* Whether a daemon may be started: there is none. Connects to the one that there is. */
static int is_missing(void)
{
	struct sockaddr_un address = { 0 };
	int found = find_socket(&address);

	if (found <= 0)
		return found == 0;
	connection = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	/* Never wait here: a daemon whose queue is full is overloaded. */
	if (connection >= 0 && fcntl(connection, F_SETFL, O_NONBLOCK) == 0 &&
	    connect(connection, (struct sockaddr *)&address, sizeof address) == 0 && fcntl(connection, F_SETFL, 0) == 0)
		return 0;
	found = errno == ECONNREFUSED || errno == ENOENT;
	close(connection);
	connection = -1;
	return found;
}

static int is_there(void)
{
	forget_endpoint();
	return !is_missing();
}

int main(int argc, char **argv)
{
	char store[PATH_MAX];
	const char *name;

	if (argc < 1)
		return 127;
	on_no_memory = run_tool;
	learn_place();
	name = find_tool(argv);
	if (!*name && tool[0])
		name = told_as();
	if (is_builder(name)) {
		offer_tokens(name);
		become_tool();
	}
	if (tool[0] && strcmp(name, "cmake") == 0) {
		if (!is_on(getenv("BUILDD_DISABLE"), 0))
			prepare_configure();
		become_tool();
	}
	if (!tool[0] || is_on(getenv("BUILDD_DISABLE"), 0) || is_confined()) {
		forget_library();
		run_tool();
	}
	look_through_wrapper();
	forget_library();
	if (!recaches() && find_store(store, sizeof store))
		answer(store);
	if (is_missing() && start_daemon(is_there) && connection < 0)
		is_there();
	if (connection >= 0)
		ask(connection);
	run_tool();
}
