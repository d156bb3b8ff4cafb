// Loaded by LD_PRELOAD: every wait for a ring of io_uring is ended by a signal, though all that it waited for has come.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <linux/io_uring.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/syscall.h>

static long waits;

long syscall(long number, ...) {
  static long (*real)(long, ...);
  if (!real) real = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
  va_list list;
  va_start(list, number);
  long given[6];
  for (int i = 0; i < 6; ++i) given[i] = va_arg(list, long);
  va_end(list);
  const long made = real(number, given[0], given[1], given[2], given[3], given[4], given[5]);
  if (number == SYS_io_uring_enter && made == 0 && (given[3] & IORING_ENTER_GETEVENTS)) {
    ++waits;
    errno = EINTR;
    return -1;
  }
  return made;
}

long interrupted_waits(void) { return waits; }
