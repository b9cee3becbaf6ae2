// A CUDA compiler for tests and benchmarks, as fast as a copy: answers probes as nvcc 13 does, and "compiles" by
// writing a digest of what it read. Knows no language. Compiled by tests/support/toolkit.py as bin/nvcc of a toolkit.
//
//   nvcc --dryrun ... | --list-gpu-code
//   nvcc [-c] [-I DIR]... [-D NAME]... [-gencode=...]... [-MD -MF FILE] -o OUT SOURCE.cu
//   nvcc -shared [-Xlinker=--dependency-file=FILE] -o OUT INPUT...
//
// The result depends on -D and -gencode flags and on the bytes of the sources and of all that they include (not on names
// and times), in the order of reading. With SUNPRO_DEPENDENCIES="FILE TARGET" a make rule is appended to FILE, as gcc does.
//
// Directives, one a line, in sources and headers:
//   #include "x.h"      looked for beside the includer, then in -I; read once
//   //! sleep S         wait S seconds before the output is opened
//   //! linger S        wait S seconds when half of the output is written
//   //! bytes N         at least N bytes of output, which do not pack well
//   //! print N         N bytes on stdout, in lines that are not UTF-8
//   //! wait FILE       wait for a file to be there
//   //! signal N        end by a signal
//   //! fail            "FILE:1: error: asked for" on stderr, status 1, no output
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 40000 };

static const char *folders[256], *inputs[MOST];
static char *files[MOST];
static int folder_count, input_count, file_count, failed;
static uint64_t digest = 0xcbf29ce484222325u;
static double sleep_s, linger_s;
static long least_bytes;

static void take(const char *data, size_t size) {
  for (size_t i = 0; i < size; i++) digest = (digest ^ (unsigned char)data[i]) * 0x100000001b3u;
}

static void die(const char *what, const char *name) {
  fprintf(stderr, "%s: fatal error: %s\n", name, what);
  exit(1);
}

static void wait_s(double s) {
  struct timespec left = {(time_t)s, (long)((s - (double)(time_t)s) * 1e9)};
  while (nanosleep(&left, &left) != 0) {
  }
}

static char *slurp(const char *path, size_t *size) {
  FILE *stream = fopen(path, "rb");
  if (stream == NULL) die("No such file or directory", path);
  size_t room = 1 << 16;
  char *data = malloc(room + 1);
  *size = 0;
  for (size_t got; (got = fread(data + *size, 1, room - *size, stream)) > 0;) {
    *size += got;
    if (*size == room) data = realloc(data, (room *= 2) + 1);
  }
  fclose(stream);
  data[*size] = '\0';
  return data;
}

static void read_source(const char *path);

static void include(const char *includer, const char *name) {
  char path[PATH_MAX];
  const char *slash = strrchr(includer, '/');
  for (int i = -1; i < folder_count; i++) {
    if (i >= 0)
      snprintf(path, sizeof path, "%s/%s", folders[i], name);
    else
      snprintf(path, sizeof path, "%.*s%s", slash ? (int)(slash - includer + 1) : 0, includer, name);
    if (access(path, R_OK) != 0) continue;
    for (int k = 0; k < file_count; k++)
      if (strcmp(files[k], path) == 0) return;
    read_source(path);
    return;
  }
  die("included file not found", name);
}

static void read_source(const char *path) {
  size_t size;
  char *data = slurp(path, &size), *rest = data;
  if (file_count == MOST) die("too many files", path);
  files[file_count++] = strdup(path);
  take(data, size);
  for (char *line; (line = strsep(&rest, "\n")) != NULL;) {
    char *end;
    if (strncmp(line, "#include \"", 10) == 0 && (end = strchr(line + 10, '"')) != NULL) {
      *end = '\0';
      include(path, line + 10);
    } else if (strncmp(line, "//! sleep ", 10) == 0) {
      sleep_s += atof(line + 10);
    } else if (strncmp(line, "//! linger ", 11) == 0) {
      linger_s += atof(line + 11);
    } else if (strncmp(line, "//! wait ", 9) == 0) {
      while (access(line + 9, F_OK) != 0) wait_s(0.002);
    } else if (strncmp(line, "//! signal ", 11) == 0) {
      raise(atoi(line + 11));
    } else if (strncmp(line, "//! bytes ", 10) == 0) {
      least_bytes += atol(line + 10);
    } else if (strncmp(line, "//! print ", 10) == 0) {
      for (long left = atol(line + 10); left > 0; left -= 64)
        printf("%.*s\n", 63, "caf\xe9 caf\xe9 caf\xe9 caf\xe9 caf\xe9 caf\xe9 caf\xe9 caf\xe9 caf\xe9 caf\xe9 caf\xe9 caf\xe9 caf\xe9");
    } else if (strncmp(line, "//! fail", 8) == 0) {
      fprintf(stderr, "%s(1): error: asked for\n", path);
      failed = 1;
    }
  }
  free(data);
}

// As gcc writes a rule, or as GNU ld does: a line a file, nothing escaped.
static void rule(const char *file, const char *mode, const char *target, int linking) {
  FILE *stream = fopen(file, mode);
  if (stream == NULL) die("cannot be written", file);
  fprintf(stream, "%s:", target);
  for (int i = 0; i < file_count; i++) {
    fputs(linking ? " \\\n  " : " \\\n ", stream);
    for (const char *c = files[i]; *c; c++) {
      if (!linking && (*c == ' ' || *c == '#')) fputc('\\', stream);
      if (!linking && *c == '$') fputc('$', stream);
      fputc(*c, stream);
    }
  }
  fputc('\n', stream);
  fclose(stream);
}

static void write_output(const char *path) {
  FILE *stream = fopen(path, "wb");
  if (stream == NULL) die("cannot be written", path);
  fprintf(stream, "fake object\n%016llx\n", (unsigned long long)digest);
  uint64_t state = digest | 1;
  for (long written = 0; written < least_bytes; written += 8) {
    if (linger_s > 0 && written >= least_bytes / 2) {
      fflush(stream);
      wait_s(linger_s);
      linger_s = 0;
    }
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    fwrite(&state, 1, 8, stream);
  }
  if (ferror(stream) | fclose(stream)) die(strerror(errno), path);
}

static void dryrun(const char *host) {
  char here[PATH_MAX];
  ssize_t size = readlink("/proc/self/exe", here, sizeof here - 1);
  here[size < 0 ? 0 : size] = '\0';
  *strrchr(here, '/') = '\0';
  const char *path = getenv("PATH");
  fprintf(stderr,
          "#$ _SPACE_= \n#$ _HERE_=%1$s\n#$ TOP=%1$s/..\n#$ CICC_PATH=%1$s/../nvvm/bin\n"
          "#$ NVVMIR_LIBRARY_DIR=%1$s/../nvvm/libdevice\n#$ PATH=%1$s/../nvvm/bin:%1$s:%2$s\n"
          "#$ INCLUDES=\"-I%1$s/..//include\"  \n"
          "#$ LIBRARIES=  \"-L%1$s/..//lib64/stubs\" \"-L%1$s/..//lib64\"\n"
          "#$ %3$s -E -x c++ -D__CUDACC_VER_MAJOR__=13 -D__CUDACC_VER_MINOR__=0 -D__CUDACC_VER_BUILD__=88 \"a.cu\" -o \"/tmp/x.ii\" \n",
          here, path ? path : "", host);
}

int main(int count, char **arguments) {
  const char *output = "a.out", *depfile = NULL, *host = "gcc";
  int linking = 0, probing = 0;
  for (int i = 1; i < count; i++) {
    const char *argument = arguments[i], *next = i + 1 < count ? arguments[i + 1] : "";
    if (strcmp(argument, "--list-gpu-code") == 0) {
      puts("sm_75\nsm_80\nsm_86\nsm_89\nsm_90\nsm_100");
      return 0;
    }
    if (strcmp(argument, "--dryrun") == 0) probing = 1;
    else if (strcmp(argument, "-ccbin") == 0) host = next, i++;
    else if (strcmp(argument, "-shared") == 0) linking = 1;
    else if (strcmp(argument, "-o") == 0) output = next, i++;
    else if (strcmp(argument, "-MF") == 0) depfile = next, i++;
    else if (strncmp(argument, "-Xlinker=--dependency-file=", 27) == 0) depfile = argument + 27;
    else if (strncmp(argument, "-I", 2) == 0) folders[folder_count++ % 256] = argument + 2;
    else if (strncmp(argument, "-D", 2) == 0 || strncmp(argument, "-gencode", 8) == 0) take(argument, strlen(argument));
    else if (argument[0] != '-' && input_count < MOST) inputs[input_count++] = argument;
  }
  if (probing) return dryrun(host), 0;
  for (int i = 0; i < input_count; i++) {
    if (!linking) {
      read_source(inputs[i]);
      continue;
    }
    size_t size;
    char *data = slurp(inputs[i], &size);
    take(data, size);
    free(data);
    files[file_count++] = strdup(inputs[i]);
  }
  if (sleep_s > 0) wait_s(sleep_s);
  char *sun = getenv("SUNPRO_DEPENDENCIES");
  if (sun != NULL && *sun) {  // nvcc compiles a stub when it links
    char *target = strchr(sun, ' ');
    if (target != NULL) *target++ = '\0';
    rule(sun, "a", target ? target : output, 0);
  }
  if (failed) return 1;
  if (depfile != NULL) rule(depfile, "w", output, linking);
  write_output(output);
  return 0;
}
