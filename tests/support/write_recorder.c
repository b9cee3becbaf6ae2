/* Preloaded into a process: records each change of files below RECORDED_FOLDER, in the order in which it happened.

   A record is "OP INO A B LENGTH\n", then LENGTH bytes: data, or paths with a NUL between two. Operations: c create,
   w write at A, t truncate to A, s sync, r rename, u unlink, m mkdir, d rmdir, l link. Written to RECORD_FILE while a
   lock is held, so that the order of records is the order of changes also between threads and processes.
   Maps of memory are not seen: of SQLite's files only the index of its log is written through one, and that is
   recovered whatever it holds. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static int log_file = -1;
static const char *folder;
static size_t folder_size;
static __thread int held;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

__attribute__((constructor)) static void begin(void) {
  folder = getenv("RECORDED_FOLDER");
  const char *file = getenv("RECORD_FILE");
  if (folder == NULL || file == NULL) return;
  folder_size = strlen(folder);
  int made = (int)syscall(SYS_open, file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  /* Out of the way of programs that number their descriptors. */
  log_file = fcntl(made, F_DUPFD_CLOEXEC, 900);
  syscall(SYS_close, made);
}

static int is_inside(const char *path) {
  return log_file >= 0 && strncmp(path, folder, folder_size) == 0 && (path[folder_size] == '/' || path[folder_size] == 0);
}

/* The absolute path of a name; folders in it are as they are called. */
static int absolute(int at, const char *name, char *path) {
  if (log_file < 0 || name == NULL) return 0;
  if (name[0] == '/') {
    snprintf(path, PATH_MAX, "%s", name);
  } else {
    char link[64], base[PATH_MAX];
    if (at == AT_FDCWD) {
      if (syscall(SYS_getcwd, base, sizeof base) < 0) return 0;
    } else {
      snprintf(link, sizeof link, "/proc/self/fd/%d", at);
      ssize_t size = readlink(link, base, sizeof base - 1);
      if (size < 0) return 0;
      base[size] = 0;
    }
    if (snprintf(path, PATH_MAX, "%s/%s", base, name) >= PATH_MAX) return 0;
  }
  return is_inside(path);
}

static int named(int fd, char *path, struct stat *status) {
  char link[64];
  if (log_file < 0 || fd == log_file || fstat(fd, status) != 0 || !(S_ISREG(status->st_mode) || S_ISDIR(status->st_mode)))
    return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t size = readlink(link, path, PATH_MAX - 1);
  if (size < 0) return 0;
  path[size] = 0;
  return is_inside(path);
}

static void hold(void) {
  int error = errno;
  if (log_file >= 0 && held++ == 0) {
    /* Threads share the descriptor's lock. */
    pthread_mutex_lock(&mutex);
    while (syscall(SYS_flock, log_file, LOCK_EX) != 0 && errno == EINTR) continue;
  }
  errno = error;
}

static void release(void) {
  int error = errno;
  if (log_file >= 0 && --held == 0) {
    syscall(SYS_flock, log_file, LOCK_UN);
    pthread_mutex_unlock(&mutex);
  }
  errno = error;
}

static void put(char op, unsigned long ino, long a, const struct iovec *data, int count) {
  int error = errno;
  char head[128];
  size_t size = 0;
  for (int i = 0; i < count; i++) size += data[i].iov_len;
  struct iovec all[1 + count];
  all[0].iov_base = head;
  all[0].iov_len = (size_t)snprintf(head, sizeof head, "%c %lu %ld 0 %zu\n", op, ino, a, size);
  memcpy(all + 1, data, sizeof *data * (size_t)count);
  size_t left = all[0].iov_len + size;
  if (syscall(SYS_writev, log_file, all, 1 + count) != (long)left) abort(); /* a record that is not whole proves nothing */
  errno = error;
}

static void note(char op, unsigned long ino, long a, const char *one, const char *two) {
  struct iovec data[2] = {{(void *)one, strlen(one)}, {(void *)two, two == NULL ? 0 : strlen(two)}};
  if (two != NULL) data[0].iov_len++;
  put(op, ino, a, data, two == NULL ? 1 : 2);
}

static int opened(int fd, const char *path, int flags, int existed) {
  struct stat status;
  if (fd >= 0 && fstat(fd, &status) == 0 && S_ISREG(status.st_mode)) {
    if (!existed) note('c', status.st_ino, 0, path, NULL);
    else if (flags & O_TRUNC) note('t', status.st_ino, 0, path, NULL);
  }
  return fd;
}

static int do_open(int at, const char *name, int flags, mode_t mode) {
  char path[PATH_MAX];
  if (!(flags & (O_CREAT | O_TRUNC)) || !absolute(at, name, path)) return (int)syscall(SYS_openat, at, name, flags, mode);
  hold();
  struct stat before;
  int existed = stat(path, &before) == 0;
  int fd = opened((int)syscall(SYS_openat, at, name, flags, mode), path, flags, existed);
  release();
  return fd;
}

#define MODE(last) \
  mode_t mode = 0; \
  if (flags & (O_CREAT | __O_TMPFILE)) { va_list list; va_start(list, last); mode = va_arg(list, mode_t); va_end(list); }
int open(const char *name, int flags, ...) { MODE(flags) return do_open(AT_FDCWD, name, flags, mode); }
int open64(const char *name, int flags, ...) { MODE(flags) return do_open(AT_FDCWD, name, flags | O_LARGEFILE, mode); }
int openat(int at, const char *name, int flags, ...) { MODE(flags) return do_open(at, name, flags, mode); }
int openat64(int at, const char *name, int flags, ...) { MODE(flags) return do_open(at, name, flags | O_LARGEFILE, mode); }

static ssize_t wrote(int fd, ssize_t done, off_t at, const struct iovec *data, int count) {
  char path[PATH_MAX];
  struct stat status;
  if (done > 0 && named(fd, path, &status)) {
    struct iovec part[count];
    size_t left = (size_t)done;
    for (int i = 0; i < count; i++) {
      part[i] = data[i];
      if (part[i].iov_len > left) part[i].iov_len = left;
      left -= part[i].iov_len;
    }
    put('w', status.st_ino, at, part, count);
  }
  return done;
}

static off_t position(int fd, ssize_t done) { return lseek(fd, 0, SEEK_CUR) - (done > 0 ? done : 0); }

ssize_t write(int fd, const void *data, size_t size) {
  if (log_file < 0 || fd == log_file) return syscall(SYS_write, fd, data, size);
  hold();
  ssize_t done = syscall(SYS_write, fd, data, size);
  struct iovec one = {(void *)data, size};
  wrote(fd, done, done > 0 ? position(fd, done) : 0, &one, 1);
  release();
  return done;
}
ssize_t writev(int fd, const struct iovec *data, int count) {
  hold();
  ssize_t done = syscall(SYS_writev, fd, data, count);
  wrote(fd, done, done > 0 ? position(fd, done) : 0, data, count);
  release();
  return done;
}
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
  hold();
  ssize_t done = syscall(SYS_pwrite64, fd, data, size, at);
  struct iovec one = {(void *)data, size};
  wrote(fd, done, at, &one, 1);
  release();
  return done;
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) { return pwrite64(fd, data, size, at); }

/* Copies inside the kernel: the caller does them with reads and writes. */
ssize_t sendfile64(int to, int from, off64_t *at, size_t size) {
  char path[PATH_MAX];
  struct stat status;
  if (named(to, path, &status)) { errno = EINVAL; return -1; }
  return syscall(SYS_sendfile, to, from, at, size);
}
ssize_t sendfile(int to, int from, off_t *at, size_t size) { return sendfile64(to, from, at, size); }
ssize_t copy_file_range(int from, off64_t *in, int to, off64_t *out, size_t size, unsigned flags) {
  char path[PATH_MAX];
  struct stat status;
  if (named(to, path, &status)) { errno = EXDEV; return -1; }
  return syscall(SYS_copy_file_range, from, in, to, out, size, flags);
}
int ioctl(int fd, unsigned long request, ...) {
  va_list list;
  va_start(list, request);
  void *argument = va_arg(list, void *);
  va_end(list);
  char path[PATH_MAX];
  struct stat status;
  if (request == 0x40049409 /* FICLONE */ && named(fd, path, &status)) { errno = EOPNOTSUPP; return -1; }
  return (int)syscall(SYS_ioctl, fd, request, argument);
}
int fallocate64(int fd, int mode, off64_t at, off64_t size) {
  char path[PATH_MAX];
  struct stat status;
  if (named(fd, path, &status)) { errno = EOPNOTSUPP; return -1; }
  return (int)syscall(SYS_fallocate, fd, mode, at, size);
}
int fallocate(int fd, int mode, off_t at, off_t size) { return fallocate64(fd, mode, at, size); }

int ftruncate64(int fd, off64_t size) {
  char path[PATH_MAX];
  struct stat status;
  hold();
  int done = (int)syscall(SYS_ftruncate, fd, size);
  if (done == 0 && named(fd, path, &status)) note('t', status.st_ino, size, path, NULL);
  release();
  return done;
}
int ftruncate(int fd, off_t size) { return ftruncate64(fd, size); }

static int synced(int fd, long number) {
  char path[PATH_MAX];
  struct stat status;
  hold();
  int done = (int)syscall(number, fd);
  if (done == 0 && named(fd, path, &status)) note('s', status.st_ino, 0, path, NULL);
  release();
  return done;
}
int fsync(int fd) { return synced(fd, SYS_fsync); }
int fdatasync(int fd) { return synced(fd, SYS_fdatasync); }

static int moved(int from_at, const char *from, int to_at, const char *to, unsigned flags) {
  char one[PATH_MAX], two[PATH_MAX];
  int inside = absolute(from_at, from, one) + absolute(to_at, to, two);
  struct stat status;
  hold();
  int known = stat(one, &status);
  int done = (int)syscall(SYS_renameat2, from_at, from, to_at, to, flags);
  if (done == 0 && inside == 2 && known == 0) note('r', status.st_ino, 0, one, two);
  release();
  return done;
}
int rename(const char *from, const char *to) { return moved(AT_FDCWD, from, AT_FDCWD, to, 0); }
int renameat(int a, const char *from, int b, const char *to) { return moved(a, from, b, to, 0); }
int renameat2(int a, const char *from, int b, const char *to, unsigned flags) { return moved(a, from, b, to, flags); }

static int gone(int at, const char *name, int flags) {
  char path[PATH_MAX];
  int inside = absolute(at, name, path);
  hold();
  int done = (int)syscall(SYS_unlinkat, at, name, flags);
  if (done == 0 && inside) note(flags & AT_REMOVEDIR ? 'd' : 'u', 0, 0, path, NULL);
  release();
  return done;
}
int unlink(const char *name) { return gone(AT_FDCWD, name, 0); }
int unlinkat(int at, const char *name, int flags) { return gone(at, name, flags); }
int rmdir(const char *name) { return gone(AT_FDCWD, name, AT_REMOVEDIR); }
int remove(const char *name) {
  int done = unlink(name);
  return done != 0 && errno == EISDIR ? rmdir(name) : done;
}

static int made(int at, const char *name, mode_t mode) {
  char path[PATH_MAX];
  int inside = absolute(at, name, path);
  hold();
  int done = (int)syscall(SYS_mkdirat, at, name, mode);
  if (done == 0 && inside) note('m', 0, 0, path, NULL);
  release();
  return done;
}
int mkdir(const char *name, mode_t mode) { return made(AT_FDCWD, name, mode); }
int mkdirat(int at, const char *name, mode_t mode) { return made(at, name, mode); }

static int linked(int a, const char *from, int b, const char *to, int flags) {
  char one[PATH_MAX], two[PATH_MAX];
  int inside = absolute(a, from, one) + absolute(b, to, two);
  struct stat status;
  hold();
  int done = (int)syscall(SYS_linkat, a, from, b, to, flags);
  if (done == 0 && inside == 2 && stat(two, &status) == 0) note('l', status.st_ino, 0, one, two);
  release();
  return done;
}
int link(const char *from, const char *to) { return linked(AT_FDCWD, from, AT_FDCWD, to, 0); }
int linkat(int a, const char *from, int b, const char *to, int flags) { return linked(a, from, b, to, flags); }
