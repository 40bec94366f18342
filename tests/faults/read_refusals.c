/* Preloaded into nsqd by tests/faults/refusing.py: a disk that refuses to read.

   NSQ_REFUSE_CONTROL names a file. While it is there, reading files fails with EIO whose paths have its text in them, and
   so does listing folders. With a "+" before the text, they cannot even be opened to read. Writing goes on. */

#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static int refuses(const char *path, int opening) {
    const char *control = getenv("NSQ_REFUSE_CONTROL");
    char part[256];
    if (control == NULL || strcmp(path, control) == 0) return 0;
    int saved = errno;
    long descriptor = syscall(SYS_openat, AT_FDCWD, control, O_RDONLY | O_CLOEXEC);
    long length = descriptor < 0 ? 0 : syscall(SYS_read, descriptor, part, sizeof part - 1);
    if (descriptor >= 0) syscall(SYS_close, descriptor);
    errno = saved;
    if (length <= 0) return 0;
    part[length] = 0;
    if (part[0] == '+') return strstr(path, part + 1) != NULL;
    return !opening && strstr(path, part) != NULL;
}

static int refuses_descriptor(int descriptor) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    long length = syscall(SYS_readlinkat, AT_FDCWD, link, path, sizeof path - 1);
    if (length <= 0) return 0;
    path[length] = 0;
    return path[0] == '/' && refuses(path, 0);
}

#define REFUSE(condition, result) \
    if (condition) {              \
        errno = EIO;              \
        return result;            \
    }
#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t read(int descriptor, void *buffer, size_t size) {
    REFUSE(refuses_descriptor(descriptor), -1)
    return syscall(SYS_read, descriptor, buffer, size);
}

ssize_t pread(int descriptor, void *buffer, size_t size, off_t offset) {
    REFUSE(refuses_descriptor(descriptor), -1)
    return REAL(pread)(descriptor, buffer, size, offset);
}

ssize_t pread64(int descriptor, void *buffer, size_t size, off64_t offset) {
    REFUSE(refuses_descriptor(descriptor), -1)
    return REAL(pread64)(descriptor, buffer, size, offset);
}

ssize_t preadv2(int descriptor, const struct iovec *pieces, int count, off_t offset, int flags) {
    REFUSE(refuses_descriptor(descriptor), -1)
    return REAL(preadv2)(descriptor, pieces, count, offset, flags);
}

ssize_t preadv64v2(int descriptor, const struct iovec *pieces, int count, off64_t offset, int flags) {
    REFUSE(refuses_descriptor(descriptor), -1)
    return REAL(preadv64v2)(descriptor, pieces, count, offset, flags);
}

static int opened(const char *path, int flags, mode_t mode) {
    REFUSE((flags & O_ACCMODE) == O_RDONLY && !(flags & O_DIRECTORY) && refuses(path, 1), -1)
    return syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

int open(const char *path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    mode_t mode = va_arg(rest, mode_t);
    va_end(rest);
    return opened(path, flags, mode);
}

int open64(const char *path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    mode_t mode = va_arg(rest, mode_t);
    va_end(rest);
    return opened(path, flags | O_LARGEFILE, mode);
}

DIR *opendir(const char *path) {
    REFUSE(refuses(path, 0), NULL)
    return REAL(opendir)(path);
}
