/* Preloaded into a process: its time of day is wrong, as a file says; monotonic clocks and waits are as they are.

   WRONG_CLOCK_FILE holds two 64-bit numbers, which may change at any time: 0 and an offset in ns, 1 and a time in ns at
   which the clock stands, or 2 and its speed in thousandths. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *wrong;
static int64_t begun;

static int64_t now(void) {
  struct timespec real;
  syscall(SYS_clock_gettime, CLOCK_REALTIME, &real);
  int64_t ns = real.tv_sec * 1000000000LL + real.tv_nsec;
  if (wrong == NULL) return ns;
  if (wrong[0] == 1) return wrong[1];
  if (wrong[0] == 2) return begun + (int64_t)((double)(ns - begun) * (double)wrong[1] / 1000.0);
  return ns + wrong[1];
}

__attribute__((constructor)) static void begin(void) {
  const char *name = getenv("WRONG_CLOCK_FILE");
  int file = name == NULL ? -1 : (int)syscall(SYS_openat, AT_FDCWD, name, O_RDONLY | O_CLOEXEC);
  if (file < 0) return;
  begun = now();
  void *map = mmap(NULL, 16, PROT_READ, MAP_SHARED, file, 0);
  if (map != MAP_FAILED) wrong = map;
  close(file);
}

int clock_gettime(clockid_t clock, struct timespec *at) {
  if (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE) return (int)syscall(SYS_clock_gettime, clock, at);
  int64_t ns = now();
  at->tv_sec = ns / 1000000000;
  at->tv_nsec = ns % 1000000000;
  return 0;
}
int gettimeofday(struct timeval *at, void *zone) {
  (void)zone;
  int64_t ns = now();
  at->tv_sec = ns / 1000000000;
  at->tv_usec = ns % 1000000000 / 1000;
  return 0;
}
time_t time(time_t *at) {
  time_t seconds = now() / 1000000000;
  if (at != NULL) *at = seconds;
  return seconds;
}
int timespec_get(struct timespec *at, int base) {
  clock_gettime(CLOCK_REALTIME, at);
  return base;
}
