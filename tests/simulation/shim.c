/* A disk that misbehaves, and one that remembers: loaded below a process with LD_PRELOAD (tests/simulation/shim.py).

   It stands between the process and the C library, for paths under SHIM_ROOT alone.

   Faults: SHIM_CONTROL names a file that is mapped here and by the test, which writes rules into it while the process runs.
   A rule says which calls on which paths fail, how, how often, and until when. Each injected fault is a line in SHIM_LOG.

   Recording: with SHIM_TRACE every change of files and names, with its data, and the beginning and end of every sync is
   appended to that file, in the order in which it happened: one lock is held over a change and its record. Only syncs run
   outside of the lock, because what is written while a sync is under way is what is interesting. */

#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define MOST_DESCRIPTORS 65536
#define MOST_RULES 16

/* The same numbers, names and layout are in shim.py. */
enum op { OPEN, READ, CACHED_READ, WRITE, TRUNCATE, SYNC, RENAME, UNLINK, MKDIR, RMDIR, ALLOCATE, LIST, OPS };
enum effect { FAIL, SHORT, TORN, HANG, SKIP };
static const char *const op_names[OPS] = {"open",   "read",   "cached_read", "write", "truncate", "sync",
                                          "rename", "unlink", "mkdir",       "rmdir", "allocate", "list"};
static const char *const effect_names[] = {"fail", "short", "torn", "hang", "skip"};

struct rule {
    uint64_t until;       /* CLOCK_MONOTONIC, nanoseconds */
    uint32_t ops;         /* a bit for each */
    uint32_t effect;
    uint32_t code;        /* errno */
    uint32_t milliseconds; /* HANG: at most */
    uint32_t per_million; /* of the calls that match */
    int32_t left;         /* how many more; negative: no bound */
    char pattern[96];     /* of the path below SHIM_ROOT, as fnmatch has it */
};

struct control {
    uint64_t seed;
    uint32_t count;
    uint32_t drawn; /* random numbers so far: by all processes that were run with this file */
    struct rule rules[MOST_RULES];
};

enum kind { T_OPEN = 1, T_CLOSE, T_WRITE, T_TRUNCATE, T_SYNC_BEGIN, T_SYNC_END, T_RENAME, T_UNLINK, T_MKDIR, T_RMDIR };

struct record {
    uint64_t time;
    uint32_t kind;
    int32_t descriptor;
    uint64_t number; /* offset, size, or which sync */
    uint32_t path_size;
    uint32_t data_size;
};

static struct control *control;
static int log_fd = -1, trace_fd = -1;
static char root[4096];
static size_t root_size;
static char *paths[MOST_DESCRIPTORS]; /* of what is open below the root, without the root */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t syncs;

#define REAL(name) ({ static __typeof__(&name) found; if (!found) found = (__typeof__(&name))dlsym(RTLD_NEXT, #name); found; })

static uint64_t now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (uint64_t)at.tv_sec * 1000000000u + (uint64_t)at.tv_nsec;
}

static int plain_open(const char *path, int flags) { return (int)syscall(SYS_openat, AT_FDCWD, path, flags | O_CLOEXEC, 0600); }

/* A high number, so that the process gets the descriptors that it would get without us. */
static int out_of_the_way(int descriptor) {
    int high = fcntl(descriptor, F_DUPFD_CLOEXEC, 900);
    if (high < 0) return descriptor;
    syscall(SYS_close, descriptor);
    return high;
}

/* A forked process (tests/support/zygote.py) calls it once more, with variables of its own. */
__attribute__((constructor, visibility("default"))) void begin(void) {
    const char *given = getenv("SHIM_ROOT"), *control_path = getenv("SHIM_CONTROL"), *log = getenv("SHIM_LOG"),
               *trace = getenv("SHIM_TRACE");
    if (!given) return;
    root_size = strlen(given);
    if (root_size >= sizeof root) abort();
    memcpy(root, given, root_size + 1);
    if (control_path) {
        int descriptor = plain_open(control_path, O_RDWR);
        if (descriptor < 0) abort();
        control = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
        if (control == MAP_FAILED) abort();
        syscall(SYS_close, descriptor);
    }
    if (log) log_fd = out_of_the_way(plain_open(log, O_WRONLY | O_CREAT | O_APPEND));
    if (trace) trace_fd = out_of_the_way(plain_open(trace, O_WRONLY | O_CREAT | O_APPEND));
}

/* Which path it is: "" for the root itself, NULL for one that is not ours. */

static const char *below(const char *path) {
    if (!root_size || !path || strncmp(path, root, root_size)) return NULL;
    if (path[root_size] == '\0') return path + root_size;
    return path[root_size] == '/' ? path + root_size + 1 : NULL;
}

static const char *of(int descriptor) { return descriptor >= 0 && descriptor < MOST_DESCRIPTORS ? paths[descriptor] : NULL; }

/* A path relative to an open folder, in a buffer of the caller. */
static const char *below_at(int folder, const char *path, char *buffer, size_t size) {
    if (path[0] == '/' || folder == AT_FDCWD) return below(path);
    const char *base = of(folder);
    if (!base) return NULL;
    if ((size_t)snprintf(buffer, size, "%s%s%s", base, *base ? "/" : "", path) >= size) abort();
    return buffer;
}

/* Faults */

static uint64_t draw(void) {
    uint64_t x = control->seed + 0x9e3779b97f4a7c15u * (1 + __atomic_fetch_add(&control->drawn, 1, __ATOMIC_RELAXED));
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static void tell(enum op op, const struct rule *rule, const char *path) {
    char line[512];
    if (log_fd < 0) return;
    int size = snprintf(line, sizeof line, "%llu %s %s %u %s\n", (unsigned long long)now(), op_names[op],
                        effect_names[rule->effect], rule->code, *path ? path : ".");
    if (size > 0) syscall(SYS_write, log_fd, line, (size_t)size < sizeof line ? (size_t)size : sizeof line);
}

/* The fault that this call meets. A hang is over when this returns. */
static const struct rule *fault(enum op op, const char *path) {
    if (!control || !path) return NULL;
    uint32_t count = __atomic_load_n(&control->count, __ATOMIC_ACQUIRE);
    for (uint32_t place = 0; place < count && place < MOST_RULES; place++) {
        struct rule *rule = &control->rules[place];
        if (!(rule->ops & (1u << op)) || now() >= rule->until || fnmatch(rule->pattern, path, 0)) continue;
        if (draw() % 1000000 >= rule->per_million) continue;
        if (rule->left == 0 || (rule->left > 0 && __atomic_fetch_sub(&rule->left, 1, __ATOMIC_RELAXED) <= 0)) continue;
        tell(op, rule, path);
        if (rule->effect == HANG) {
            struct timespec pause = {0, 0};
            uint64_t milliseconds = draw() % (rule->milliseconds + 1);
            pause.tv_sec = (time_t)(milliseconds / 1000);
            pause.tv_nsec = (long)(milliseconds % 1000) * 1000000;
            nanosleep(&pause, NULL);
            continue; /* and another rule may have it fail */
        }
        return rule;
    }
    return NULL;
}

static int failed(const struct rule *rule) {
    errno = (int)rule->code;
    return -1;
}

#define FAILS(op, path)                                             \
    do {                                                            \
        const struct rule *met = fault(op, path);                   \
        if (met) return met->effect == SKIP ? 0 : failed(met);      \
    } while (0)

/* Recording */

static void record(enum kind kind, int descriptor, uint64_t number, const char *path, const char *data, size_t size) {
    struct record head = {now(), kind, descriptor, number, (uint32_t)strlen(path), (uint32_t)size};
    struct iovec pieces[] = {{&head, sizeof head}, {(void *)path, head.path_size}, {(void *)data, size}};
    if ((size_t)syscall(SYS_writev, trace_fd, pieces, 3) != sizeof head + head.path_size + size) abort();
}

static int is_recorded(const char *path) { return trace_fd >= 0 && path != NULL; }

/* Does the call, and records it when it went well; nothing else changes the disk meanwhile. */
#define RECORDED(path, call, ...)                                   \
    ({                                                              \
        int is_ours = is_recorded(path), result, error;             \
        if (is_ours) pthread_mutex_lock(&lock);                     \
        result = (call);                                            \
        error = errno;                                              \
        if (is_ours && result >= 0) record(__VA_ARGS__);            \
        if (is_ours) pthread_mutex_unlock(&lock);                   \
        errno = error;                                              \
        result;                                                     \
    })

/* Opening and closing */

static int remembered(int descriptor, const char *path) {
    if (descriptor >= 0 && path) {
        if (descriptor >= MOST_DESCRIPTORS) abort();
        free(paths[descriptor]);
        paths[descriptor] = strdup(path);
    }
    return descriptor;
}

static int open_below(int folder, const char *given, int flags, mode_t mode, const char *path) {
    const struct rule *met = fault(OPEN, path);
    if (met) return failed(met);
    return RECORDED(path, remembered((int)syscall(SYS_openat, folder, given, flags, mode), path), T_OPEN, result,
                    (uint64_t)flags, path, NULL, 0);
}

static mode_t mode_of(int flags, va_list arguments) {
    return flags & (O_CREAT | __O_TMPFILE) ? va_arg(arguments, mode_t) : 0;
}

static int open_any(int folder, const char *given, int flags, mode_t mode) {
    char buffer[4096];
    return open_below(folder, given, flags, mode, below_at(folder, given, buffer, sizeof buffer));
}

#define OPEN_WITH(folder)                                           \
    va_list arguments;                                              \
    va_start(arguments, flags);                                     \
    mode_t mode = mode_of(flags, arguments);                        \
    va_end(arguments);                                              \
    return open_any(folder, given, flags, mode)

int open(const char *given, int flags, ...) { OPEN_WITH(AT_FDCWD); }
int open64(const char *given, int flags, ...) { OPEN_WITH(AT_FDCWD); }
int openat(int folder, const char *given, int flags, ...) { OPEN_WITH(folder); }
int openat64(int folder, const char *given, int flags, ...) { OPEN_WITH(folder); }

int close(int descriptor) {
    const char *path = of(descriptor);
    if (!path) return (int)syscall(SYS_close, descriptor);
    pthread_mutex_lock(&lock);
    char *mine = paths[descriptor]; /* before the number can be another's */
    paths[descriptor] = NULL;
    if (trace_fd >= 0) record(T_CLOSE, descriptor, 0, mine, NULL, 0);
    pthread_mutex_unlock(&lock);
    free(mine);
    return (int)syscall(SYS_close, descriptor);
}

DIR *opendir(const char *given) {
    const struct rule *met = fault(LIST, below(given));
    if (!met) return REAL(opendir)(given);
    failed(met);
    return NULL;
}

/* Reading: a short read is one that gives a part. */

static size_t part_of(size_t size) { return size > 1 ? 1 + draw() % (size - 1) : size; }

static ssize_t read_below(enum op op, int descriptor, const struct iovec *pieces, int count, off64_t offset, int flags) {
    const struct rule *met = fault(op, of(descriptor));
    if (met && met->effect != SHORT) return failed(met);
    struct iovec first = {pieces[0].iov_base, met ? part_of(pieces[0].iov_len) : 0};
    if (met) pieces = &first, count = 1;
    return syscall(SYS_preadv2, descriptor, pieces, (unsigned long)count, offset, 0, flags);
}

static ssize_t read_one(int descriptor, void *buffer, size_t size, off64_t offset) {
    struct iovec piece = {buffer, size};
    return read_below(READ, descriptor, &piece, 1, offset, 0);
}

ssize_t read(int descriptor, void *buffer, size_t size) {
    return of(descriptor) ? read_one(descriptor, buffer, size, -1) : syscall(SYS_read, descriptor, buffer, size);
}
ssize_t readv(int descriptor, const struct iovec *pieces, int count) {
    if (!of(descriptor)) return syscall(SYS_readv, descriptor, pieces, (unsigned long)count);
    return read_below(READ, descriptor, pieces, count, -1, 0);
}
ssize_t pread(int descriptor, void *buffer, size_t size, off_t at) { return read_one(descriptor, buffer, size, at); }
ssize_t pread64(int descriptor, void *buffer, size_t size, off64_t at) { return read_one(descriptor, buffer, size, at); }
ssize_t preadv(int descriptor, const struct iovec *pieces, int count, off_t at) {
    return read_below(READ, descriptor, pieces, count, at, 0);
}
ssize_t preadv64(int descriptor, const struct iovec *pieces, int count, off64_t at) {
    return read_below(READ, descriptor, pieces, count, at, 0);
}
ssize_t preadv2(int descriptor, const struct iovec *pieces, int count, off_t at, int flags) {
    return read_below(flags & RWF_NOWAIT ? CACHED_READ : READ, descriptor, pieces, count, at, flags);
}
ssize_t preadv64v2(int descriptor, const struct iovec *pieces, int count, off64_t at, int flags) {
    return read_below(flags & RWF_NOWAIT ? CACHED_READ : READ, descriptor, pieces, count, at, flags);
}

/* Writing: a short write says so, a torn one fails after a part. */

static ssize_t write_whole(int descriptor, const char *path, const char *data, size_t size, off64_t offset) {
    struct iovec piece = {(void *)data, size};
    int is_ours = is_recorded(path);
    if (is_ours) pthread_mutex_lock(&lock);
    uint64_t where = (uint64_t)(offset >= 0 ? offset : lseek(descriptor, 0, SEEK_CUR));
    ssize_t written = syscall(SYS_pwritev2, descriptor, &piece, 1ul, offset, 0, 0);
    int error = errno;
    if (is_ours && written > 0) record(T_WRITE, descriptor, where, path, data, (size_t)written);
    if (is_ours) pthread_mutex_unlock(&lock);
    errno = error;
    return written;
}

static ssize_t write_below(int descriptor, const struct iovec *pieces, int count, off64_t offset, int flags) {
    const char *path = of(descriptor);
    if (!path) return syscall(SYS_pwritev2, descriptor, pieces, (unsigned long)count, offset, 0, flags);
    const struct rule *met = fault(WRITE, path);
    if (met && met->effect == FAIL) return failed(met);
    size_t size = 0, done = 0;
    for (int place = 0; place < count; place++) size += pieces[place].iov_len;
    char *data = malloc(size ? size : 1);
    if (!data) abort();
    for (int place = 0; place < count; done += pieces[place++].iov_len)
        memcpy(data + done, pieces[place].iov_base, pieces[place].iov_len);
    ssize_t written = write_whole(descriptor, path, data, met ? part_of(size) : size, offset);
    free(data);
    return met && met->effect == TORN ? failed(met) : written;
}

static ssize_t write_one(int descriptor, const void *data, size_t size, off64_t offset) {
    struct iovec piece = {(void *)data, size};
    return write_below(descriptor, &piece, 1, offset, 0);
}

ssize_t write(int descriptor, const void *data, size_t size) {
    return of(descriptor) ? write_one(descriptor, data, size, -1) : syscall(SYS_write, descriptor, data, size);
}
ssize_t writev(int descriptor, const struct iovec *pieces, int count) {
    if (!of(descriptor)) return syscall(SYS_writev, descriptor, pieces, (unsigned long)count);
    return write_below(descriptor, pieces, count, -1, 0);
}
ssize_t pwrite(int descriptor, const void *data, size_t size, off_t at) { return write_one(descriptor, data, size, at); }
ssize_t pwrite64(int descriptor, const void *data, size_t size, off64_t at) { return write_one(descriptor, data, size, at); }
ssize_t pwritev(int descriptor, const struct iovec *pieces, int count, off_t at) {
    return write_below(descriptor, pieces, count, at, 0);
}
ssize_t pwritev64(int descriptor, const struct iovec *pieces, int count, off64_t at) {
    return write_below(descriptor, pieces, count, at, 0);
}
ssize_t pwritev2(int descriptor, const struct iovec *pieces, int count, off_t at, int flags) {
    return write_below(descriptor, pieces, count, at, flags);
}
ssize_t pwritev64v2(int descriptor, const struct iovec *pieces, int count, off64_t at, int flags) {
    return write_below(descriptor, pieces, count, at, flags);
}

static int truncate_below(int descriptor, off64_t size) {
    const char *path = of(descriptor);
    FAILS(TRUNCATE, path);
    return RECORDED(path, (int)syscall(SYS_ftruncate, descriptor, size), T_TRUNCATE, descriptor, (uint64_t)size, path,
                    NULL, 0);
}
int ftruncate(int descriptor, off_t size) { return truncate_below(descriptor, size); }
int ftruncate64(int descriptor, off64_t size) { return truncate_below(descriptor, size); }

/* Syncing. What is lasting is what was written before the sync began. */

static void record_sync(enum kind kind, int descriptor, const char *path, uint64_t *number) {
    pthread_mutex_lock(&lock);
    if (kind == T_SYNC_BEGIN) *number = ++syncs;
    record(kind, descriptor, *number, path, NULL, 0);
    pthread_mutex_unlock(&lock);
}

static int sync_below(int descriptor, long call) {
    const char *path = of(descriptor);
    uint64_t number = 0;
    FAILS(SYNC, path);
    if (is_recorded(path)) record_sync(T_SYNC_BEGIN, descriptor, path, &number);
    int result = (int)syscall(call, descriptor), error = errno;
    if (is_recorded(path) && result == 0) record_sync(T_SYNC_END, descriptor, path, &number);
    errno = error;
    return result;
}
int fsync(int descriptor) { return sync_below(descriptor, SYS_fsync); }
int fdatasync(int descriptor) { return sync_below(descriptor, SYS_fdatasync); }
int sync_file_range(int descriptor, off64_t offset, off64_t size, unsigned flags) { /* makes nothing lasting by itself */
    FAILS(SYNC, of(descriptor));
    return (int)syscall(SYS_sync_file_range, descriptor, offset, size, flags);
}

static int allocate_below(int descriptor, int mode, off64_t offset, off64_t size) {
    FAILS(ALLOCATE, of(descriptor));
    return (int)syscall(SYS_fallocate, descriptor, mode, offset, size);
}
int fallocate(int descriptor, int mode, off_t offset, off_t size) { return allocate_below(descriptor, mode, offset, size); }
int fallocate64(int descriptor, int mode, off64_t offset, off64_t size) {
    return allocate_below(descriptor, mode, offset, size);
}

/* Names */

int rename(const char *source, const char *target) {
    const char *path = below(source), *to = below(target);
    FAILS(RENAME, path);
    return RECORDED(to ? path : NULL, (int)syscall(SYS_rename, source, target), T_RENAME, -1, 0, path, to, strlen(to));
}

int unlinkat(int folder, const char *given, int flags) {
    char buffer[4096];
    const char *path = below_at(folder, given, buffer, sizeof buffer);
    int is_folder = flags & AT_REMOVEDIR;
    FAILS(is_folder ? RMDIR : UNLINK, path);
    return RECORDED(path, (int)syscall(SYS_unlinkat, folder, given, flags), is_folder ? T_RMDIR : T_UNLINK, -1, 0, path,
                    NULL, 0);
}
int unlink(const char *given) { return unlinkat(AT_FDCWD, given, 0); }
int rmdir(const char *given) { return unlinkat(AT_FDCWD, given, AT_REMOVEDIR); }

int mkdirat(int folder, const char *given, mode_t mode) {
    char buffer[4096];
    const char *path = below_at(folder, given, buffer, sizeof buffer);
    FAILS(MKDIR, path);
    return RECORDED(path, (int)syscall(SYS_mkdirat, folder, given, mode), T_MKDIR, -1, 0, path, NULL, 0);
}
int mkdir(const char *given, mode_t mode) { return mkdirat(AT_FDCWD, given, mode); }
