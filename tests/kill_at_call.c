// Loaded by LD_PRELOAD: counts the calls by which a process changes files below a folder, writes down what each is
// inside of, and kills the process at one of them. A write is then made by half: the process dies in its middle.
//
//   KILL_FOLDER   calls for files below it count
//   KILL_TRACE    a line is appended for each: number, call, path, function of the native core, segment collected
//   KILL_AT       the number of the call to die at; 0 or nothing for never
//
// The same by `kill_arm(folder, trace, at)`, for processes that were forked.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <execinfo.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <linux/io_uring.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

enum { kRings = 4096 };

struct ring {
  struct io_uring_params params;
  char* submissions;
  struct io_uring_sqe* entries;
};

static char folder[PATH_MAX], collecting[64];
static size_t folder_length;
static int trace = -1;
static long dies_at, calls;
static struct ring rings[kRings];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

#define REAL(name) \
  static __typeof__(&name) real; \
  if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

void kill_arm(const char* where, const char* lines, long at) {
  snprintf(folder, sizeof folder, "%s", where);
  folder_length = strlen(folder);
  trace = (int)syscall(SYS_openat, AT_FDCWD, lines, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  dies_at = at;
  calls = 0;
  collecting[0] = 0;
}

__attribute__((constructor)) static void begin(void) {
  void* frames[2];
  backtrace(frames, 2);  // its first call loads a library
  const char *where = getenv("KILL_FOLDER"), *lines = getenv("KILL_TRACE"), *at = getenv("KILL_AT");
  if (where && lines) kill_arm(where, lines, at ? atol(at) : 0);
}

static int below(const char* path) {
  return folder_length && strncmp(path, folder, folder_length) == 0 && path[folder_length] == '/';
}

// The path of an open file; empty if it is none of ours.
static int of_file(int file, char* path) {
  char link[64];
  if (!folder_length || file < 0 || file == trace) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  ssize_t length = syscall(SYS_readlinkat, AT_FDCWD, link, path, PATH_MAX - 1);
  path[length < 0 ? 0 : length] = 0;
  return below(path);
}

static int of_name(int at, const char* name, char* path) {
  if (!folder_length) return 0;
  if (name[0] == '/' || at == AT_FDCWD) {
    snprintf(path, PATH_MAX, "%s", name);
    return below(path);
  }
  char parent[PATH_MAX];
  if (!of_file(at, parent)) {
    if (strcmp(parent, folder) != 0) return 0;
  }
  snprintf(path, PATH_MAX, "%.2000s/%.2000s", parent, name);
  return below(path);
}

// The function of the native core that the caller is in.
static const char* inside(void) {
  void* frames[48];
  const int count = backtrace(frames, 48);
  const char* found = "-";
  for (int i = 0; i < count; ++i) {
    Dl_info about;
    const ElfW(Sym)* symbol = NULL;
    if (!dladdr1(frames[i], &about, (void**)&symbol, RTLD_DL_SYMENT) || !about.dli_sname || !symbol) continue;
    const char* from = (const char*)about.dli_saddr;
    if (strncmp(about.dli_sname, "mg_", 3) != 0 || (const char*)frames[i] > from + symbol->st_size) continue;
    found = about.dli_sname;
  }
  return found;
}

static int is_segment_of_pool(const char* path) {
  const char* end = strrchr(path, '.');
  return end && strcmp(end, ".rows") == 0 && !strstr(path, "/segments-") && !strstr(path, "/held-");
}

// Writes a line; returns whether this is the call to die at.
static int reached(const char* call, const char* path) {
  char line[PATH_MAX + 300];
  const char* function = inside();
  pthread_mutex_lock(&lock);
  const long number = ++calls;
  const int length = snprintf(line, sizeof line, "%ld\t%s\t%s\t%s\t%s\n", number, call, path + folder_length + 1,
                              function, collecting[0] ? collecting : "-");
  syscall(SYS_write, trace, line, (size_t)length);
  pthread_mutex_unlock(&lock);
  return number == dies_at;
}

static void die(void) {
  syscall(SYS_kill, syscall(SYS_getpid), SIGKILL);
  for (;;) pause();
}

// A segment of the pool that is read from its first byte on, not only its header: its rows are about to move.
static void note_read(int file, uint64_t offset, uint64_t bytes) {
  char path[PATH_MAX];
  if (offset == 0 && bytes > 4096 && of_file(file, path) && is_segment_of_pool(path)) {
    snprintf(collecting, sizeof collecting, "%.40s", strrchr(path, '/') + 1);
  }
}

static void note_unlink(const char* path) {
  if (is_segment_of_pool(path) && strcmp(strrchr(path, '/') + 1, collecting) == 0) collecting[0] = 0;
}

// Half of a write; of whole blocks where that is possible, which unbuffered files want.
static size_t half(size_t bytes) { return bytes >= 8192 ? bytes / 2 / 4096 * 4096 : bytes / 2; }

ssize_t write(int file, const void* data, size_t bytes) {
  REAL(write);
  char path[PATH_MAX];
  if (of_file(file, path) && reached("write", path)) {
    real(file, data, half(bytes));
    die();
  }
  return real(file, data, bytes);
}

ssize_t pwrite(int file, const void* data, size_t bytes, off_t offset) {
  REAL(pwrite);
  char path[PATH_MAX];
  if (of_file(file, path) && reached("pwrite", path)) {
    real(file, data, half(bytes), offset);
    die();
  }
  return real(file, data, bytes, offset);
}

ssize_t pwrite64(int file, const void* data, size_t bytes, off64_t offset) { return pwrite(file, data, bytes, offset); }

ssize_t pread(int file, void* data, size_t bytes, off_t offset) {
  REAL(pread);
  note_read(file, (uint64_t)offset, bytes);
  return real(file, data, bytes, offset);
}

ssize_t pread64(int file, void* data, size_t bytes, off64_t offset) { return pread(file, data, bytes, offset); }

// What has no middle is done, or not, before the process dies: by turns.
#define BETWEEN(name, path, done) \
  do { \
    if (reached(name, path)) { \
      if (dies_at % 2) done; \
      die(); \
    } \
  } while (0)

int fsync(int file) {
  REAL(fsync);
  char path[PATH_MAX];
  if (of_file(file, path)) BETWEEN("fsync", path, real(file));
  return real(file);
}

int fdatasync(int file) {
  REAL(fdatasync);
  char path[PATH_MAX];
  if (of_file(file, path)) BETWEEN("fdatasync", path, real(file));
  return real(file);
}

int ftruncate(int file, off_t bytes) {
  REAL(ftruncate);
  char path[PATH_MAX];
  if (of_file(file, path)) BETWEEN("ftruncate", path, real(file, bytes));
  return real(file, bytes);
}

ssize_t sendfile(int to, int from, off_t* offset, size_t bytes) {
  REAL(sendfile);
  char path[PATH_MAX];
  if (of_file(to, path) && reached("sendfile", path)) {
    real(to, from, offset, half(bytes));
    die();
  }
  return real(to, from, offset, bytes);
}

int rename(const char* from, const char* to) {
  REAL(rename);
  char path[PATH_MAX];
  if (of_name(AT_FDCWD, to, path)) BETWEEN("rename", path, real(from, to));
  return real(from, to);
}

int renameat2(int from_at, const char* from, int to_at, const char* to, unsigned flags) {
  REAL(renameat2);
  char path[PATH_MAX];
  if (of_name(to_at, to, path)) BETWEEN("renameat2", path, real(from_at, from, to_at, to, flags));
  return real(from_at, from, to_at, to, flags);
}

int link(const char* from, const char* to) {
  REAL(link);
  char path[PATH_MAX];
  if (of_name(AT_FDCWD, to, path)) BETWEEN("link", path, real(from, to));
  return real(from, to);
}

int linkat(int from_at, const char* from, int to_at, const char* to, int flags) {
  REAL(linkat);
  char path[PATH_MAX];
  if (of_name(to_at, to, path)) BETWEEN("linkat", path, real(from_at, from, to_at, to, flags));
  return real(from_at, from, to_at, to, flags);
}

int unlink(const char* name) {
  REAL(unlink);
  char path[PATH_MAX];
  if (of_name(AT_FDCWD, name, path)) {
    BETWEEN("unlink", path, real(name));
    note_unlink(path);
  }
  return real(name);
}

int unlinkat(int at, const char* name, int flags) {
  REAL(unlinkat);
  char path[PATH_MAX];
  if (of_name(at, name, path)) BETWEEN("unlinkat", path, real(at, name, flags));
  return real(at, name, flags);
}

int rmdir(const char* name) {
  REAL(rmdir);
  char path[PATH_MAX];
  if (of_name(AT_FDCWD, name, path)) BETWEEN("rmdir", path, real(name));
  return real(name);
}

int mkdir(const char* name, mode_t mode) {
  REAL(mkdir);
  char path[PATH_MAX];
  if (of_name(AT_FDCWD, name, path)) BETWEEN("mkdir", path, real(name, mode));
  return real(name, mode);
}

void* mmap(void* where, size_t bytes, int protection, int flags, int file, off_t offset) {
  REAL(mmap);
  void* memory = real(where, bytes, protection, flags, file, offset);
  if (file >= 0 && file < kRings && rings[file].params.sq_entries && memory != MAP_FAILED) {
    if (offset == IORING_OFF_SQ_RING) rings[file].submissions = memory;
    if (offset == (off_t)IORING_OFF_SQES) rings[file].entries = memory;
  }
  return memory;
}

void* mmap64(void* where, size_t bytes, int protection, int flags, int file, off64_t offset) {
  return mmap(where, bytes, protection, flags, file, offset);
}

// What a ring is about to give the kernel.
static void entered(const struct ring* ring) {
  if (!folder_length || !ring->submissions || !ring->entries) return;
  const struct io_sqring_offsets* at = &ring->params.sq_off;
  const uint32_t mask = *(uint32_t*)(ring->submissions + at->ring_mask);
  const uint32_t* order = (const uint32_t*)(ring->submissions + at->array);
  const uint32_t head = __atomic_load_n((uint32_t*)(ring->submissions + at->head), __ATOMIC_ACQUIRE);
  const uint32_t tail = __atomic_load_n((uint32_t*)(ring->submissions + at->tail), __ATOMIC_ACQUIRE);
  for (uint32_t i = head; i != tail; ++i) {
    const struct io_uring_sqe* entry = &ring->entries[order[i & mask]];
    char path[PATH_MAX];
    if (entry->opcode == IORING_OP_READ) note_read(entry->fd, entry->off, entry->len);
    if (entry->opcode != IORING_OP_WRITE || !of_file(entry->fd, path)) continue;
    if (reached("io_uring", path)) {
      syscall(SYS_pwrite64, entry->fd, (void*)(uintptr_t)entry->addr, half(entry->len), entry->off);
      die();
    }
  }
}

long syscall(long number, ...) {
  static __typeof__(&syscall) real;
  if (!real) real = (__typeof__(&syscall))dlsym(RTLD_NEXT, "syscall");
  long given[6];
  va_list list;
  va_start(list, number);
  for (int i = 0; i < 6; ++i) given[i] = va_arg(list, long);
  va_end(list);
  if (number == SYS_io_uring_enter && given[0] >= 0 && given[0] < kRings) entered(&rings[given[0]]);
  const long result = real(number, given[0], given[1], given[2], given[3], given[4], given[5]);
  if (number == SYS_io_uring_setup && result >= 0 && result < kRings) {
    memset(&rings[result], 0, sizeof rings[result]);
    memcpy(&rings[result].params, (void*)given[1], sizeof(struct io_uring_params));
  }
  return result;
}
