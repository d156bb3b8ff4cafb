// Calls a function one instruction at a time, and kills the process inside of it. x86-64 and Linux only.
//
// The processor traps after every instruction while its trap flag is set. Instructions of the native core count, those
// of libraries that it calls do not. The line of the trace is written before the process dies:
//
//   killed  TAB  instructions of the core so far  TAB  offset in the core  TAB  watched numbers below 0, of how many
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

enum { kMostSteps = 30000 };

static uintptr_t low, high;
static long dies_at, instructions, watched, below_at_first, dies_below;
static const int32_t* numbers;
static int trace;

static long below_zero(void) {
  long count = 0;
  for (long i = 0; i < watched; ++i) count += numbers[i] < 0;
  return count;
}

static void trapped(int signal, siginfo_t* info, void* context) {
  (void)signal, (void)info;
  const uintptr_t at = (uintptr_t)((ucontext_t*)context)->uc_mcontext.gregs[REG_RIP];
  if (at < low || at >= high) return;
  // At full speed again.
  if (++instructions == kMostSteps && !watched) ((ucontext_t*)context)->uc_mcontext.gregs[REG_EFL] &= ~0x100;
  const int is_reached = watched && instructions % 64 == 0 && below_zero() <= dies_below;
  if (!is_reached && instructions != dies_at) return;
  char line[200];
  const int length = snprintf(line, sizeof line, "killed\t%ld\t%lx\t%ld\t%ld\n", instructions, (long)(at - low),
                              watched ? below_zero() : 0, below_at_first);
  syscall(SYS_write, trace, line, (size_t)length);
  syscall(SYS_kill, syscall(SYS_getpid), SIGKILL);
}

// Instructions of the core, which lies in [from, to), that the call took, up to kMostSteps. `at` is the one to die at, 0
// for none; or, whenever that is, it dies when `written` of the `count` numbers at `watch` that were below 0 are not now.
long call_stepped(void* function, const long* given, uintptr_t from, uintptr_t to, long at, const int32_t* watch,
                  long count, long written, int lines, long* result) {
  low = from, high = to, dies_at = at, trace = lines, instructions = 0;
  numbers = watch, watched = count;
  below_at_first = count ? below_zero() : 0;
  dies_below = below_at_first - written;
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_sigaction = trapped;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGTRAP, &action, NULL);
  long (*called)(long, long, long, long, long, long, long, long, long, long, long, long) = function;
  __asm__ volatile("pushfq; orq $0x100, (%%rsp); popfq" ::: "memory", "cc");
  const long answer = called(given[0], given[1], given[2], given[3], given[4], given[5], given[6], given[7], given[8],
                             given[9], given[10], given[11]);
  __asm__ volatile("pushfq; andq $~0x100, (%%rsp); popfq" ::: "memory", "cc");
  *result = answer;
  return instructions;
}
