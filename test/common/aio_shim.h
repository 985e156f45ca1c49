/* SPDX-License-Identifier: Apache-2.0 */
/* Transfers that fail on demand, below the library: this file defines pread, pwrite and liburing's
 * submitting calls for the program that includes it (one source file of it). A transfer of a file
 * can come short, be interrupted, fail, take long or never end, on threads and in io_uring alike.
 */
#ifndef DS_TEST_AIO_SHIM_H
#define DS_TEST_AIO_SHIM_H

#include <deepspeed/status.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>
#if __has_include(<liburing.h>)
#include <liburing.h>
#define SHIM_URING 1
#endif

static struct {
    pthread_mutex_t lock;
    pthread_cond_t answers; /* stuck is over */
    int countdown;          /* the transfer that fails: 1 is the next; 0: none */
    int n_failures;         /* so many from then on */
    int reason;             /* errno */
    bool direct_only;       /* only transfers past the page cache are counted */
    size_t most;            /* bytes that one transfer moves; 0: all */
    int no_uring;           /* errno of opening a ring */
    int n_fired;
    int pause;    /* microseconds that each transfer takes longer */
    int stuck_at; /* the transfer from which on none ends before shim_clear; 0: none */
} shim = {.lock = PTHREAD_MUTEX_INITIALIZER, .answers = PTHREAD_COND_INITIALIZER};

static void shim_clear(void)
{
    (void)pthread_mutex_lock(&shim.lock);
    shim.countdown = shim.n_failures = shim.reason = shim.no_uring = shim.n_fired = 0;
    shim.direct_only = false;
    shim.most = 0;
    shim.pause = shim.stuck_at = 0;
    (void)pthread_cond_broadcast(&shim.answers);
    (void)pthread_mutex_unlock(&shim.lock);
}

/* A disk that is slow, or does not answer. */
static void shim_hold(void)
{
    (void)pthread_mutex_lock(&shim.lock);
    shim.stuck_at -= shim.stuck_at > 1 ? 1 : 0;
    while (shim.stuck_at == 1) {
        (void)pthread_cond_wait(&shim.answers, &shim.lock);
    }
    const struct timespec pause = {.tv_nsec = shim.pause * 1000L};
    (void)pthread_mutex_unlock(&shim.lock);
    if (pause.tv_nsec > 0) {
        (void)nanosleep(&pause, NULL);
    }
}

/* The errno that this transfer gets, 0: none. *most_out: bytes that it may move. */
static int shim_decide(int fd, size_t n, size_t *most_out)
{
    const bool is_direct = (fcntl(fd, F_GETFL) & O_DIRECT) != 0;
    int reason = 0;
    shim_hold();
    (void)pthread_mutex_lock(&shim.lock);
    *most_out = shim.most > 0 && shim.most < n ? shim.most : n;
    if (shim.n_failures > 0 && (is_direct || !shim.direct_only)) {
        if (shim.countdown > 1) {
            --shim.countdown;
        } else {
            --shim.n_failures;
            ++shim.n_fired;
            reason = shim.reason;
        }
    }
    (void)pthread_mutex_unlock(&shim.lock);
    return reason;
}

/* The system is asked for whole blocks, as a direct transfer must, and less is reported. */
static ssize_t shim_transfer(long call, int fd, void *data, size_t n, off_t offset)
{
    size_t most = 0;
    const int reason = shim_decide(fd, n, &most);
    if (reason != 0) {
        errno = reason;
        return -1;
    }
    const size_t whole = (most + 4095) / 4096 * 4096;
    const ssize_t done = syscall(call, fd, data, whole < n ? whole : n, offset);
    return done > (ssize_t)most ? (ssize_t)most : done;
}

ssize_t pread(int fd, void *data, size_t n, off_t offset)
{
    return shim_transfer(SYS_pread64, fd, data, n, offset);
}

ssize_t pwrite(int fd, const void *data, size_t n, off_t offset)
{
    return shim_transfer(SYS_pwrite64, fd, (void *)(uintptr_t)data, n, offset);
}

#ifdef SHIM_URING

typedef int shim_submit_fn(struct io_uring *uring, unsigned n);

static bool shim_is_transfer(const struct io_uring_sqe *entry)
{
    return (entry->opcode == IORING_OP_READ || entry->opcode == IORING_OP_WRITE) &&
           entry->user_data != 0;
}

/* Cuts the entries that are about to go, and turns those that fail into ones that do nothing:
 * their events are there when the submitting call returns, and get the errno then. */
static unsigned shim_before(struct io_uring *uring, uint64_t *doomed, int *reasons, unsigned most)
{
    unsigned n_doomed = 0;
    for (unsigned i = uring->sq.sqe_head; i != uring->sq.sqe_tail && n_doomed < most; ++i) {
        struct io_uring_sqe *entry = &uring->sq.sqes[i & *uring->sq.kring_mask];
        size_t may = 0;
        if (!shim_is_transfer(entry)) {
            continue;
        }
        const int reason = shim_decide(entry->fd, entry->len, &may);
        const size_t whole = (may + 4095) / 4096 * 4096;
        entry->len = whole < entry->len ? (unsigned)whole : entry->len;
        if (reason != 0) {
            const uint64_t data = entry->user_data;
            io_uring_prep_nop(entry);
            entry->user_data = data;
            doomed[n_doomed] = data;
            reasons[n_doomed++] = reason;
        }
    }
    return n_doomed;
}

static void shim_after(struct io_uring *uring, const uint64_t *doomed, const int *reasons,
                       unsigned n_doomed)
{
    struct io_uring_cqe *event = NULL;
    unsigned head = 0;
    io_uring_for_each_cqe(uring, head, event)
    {
        for (unsigned i = 0; i < n_doomed; ++i) {
            if (event->user_data == doomed[i]) {
                event->res = -reasons[i];
            }
        }
    }
}

static int shim_submit(const char *name, struct io_uring *uring, unsigned n)
{
    enum { MOST = 64 };
    uint64_t doomed[MOST];
    int reasons[MOST];
    shim_submit_fn *next = NULL;
    *(void **)&next = dlsym(RTLD_NEXT, name);
    const unsigned n_doomed = shim_before(uring, doomed, reasons, MOST);
    const int result = next(uring, n);
    shim_after(uring, doomed, reasons, n_doomed);
    return result;
}

DS_API int io_uring_submit_and_wait(struct io_uring *uring, unsigned n)
{
    return shim_submit("io_uring_submit_and_wait", uring, n);
}

DS_API int io_uring_submit(struct io_uring *uring)
{
    return shim_submit("io_uring_submit", uring, 0);
}

DS_API int io_uring_queue_init(unsigned n, struct io_uring *uring, unsigned flags)
{
    int (*next)(unsigned, struct io_uring *, unsigned) = NULL;
    *(void **)&next = dlsym(RTLD_NEXT, "io_uring_queue_init");
    return shim.no_uring != 0 ? -shim.no_uring : next(n, uring, flags);
}

#endif
#endif
