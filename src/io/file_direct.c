/* SPDX-License-Identifier: Apache-2.0 */
/* Two buffers and a thread that writes them with O_DIRECT. See file_direct.h.
 *
 * 1. `pending`, `pending_bytes`, `reason` and `quit` change under the lock only; the thread reads
 *    the pending buffer, the caller fills the other one.
 * 2. Every write but the last begins and ends at a multiple of ALIGN; before one that does not,
 *    O_DIRECT is switched off for good.
 */
#include "io/file_direct.h"

#include "base/thread.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ALIGN = 4096, N_BUFFERS = 2 };
#define BUFFER_BYTES (DSI_DIRECT_BYTES / N_BUFFERS)

struct dsi_direct {
    int fd;
    bool direct; /* of the thread, and of drain when the thread is idle */
    uint8_t *memory;
    uint32_t current; /* buffer that the caller fills */
    size_t filled;

    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    const uint8_t *pending; /* NULL: the thread is idle */
    size_t pending_bytes;
    int reason; /* errno of the first failure */
    bool quit;
};

static void set_direct(dsi_direct *d, bool on)
{
    const int flags = fcntl(d->fd, F_GETFL);
    d->direct = flags >= 0 && fcntl(d->fd, F_SETFL, on ? flags | O_DIRECT : flags & ~O_DIRECT) == 0
                    ? on
                    : false;
}

/* 0 or errno. */
static int write_all(dsi_direct *d, const uint8_t *p, size_t n)
{
    while (n > 0) {
        const size_t piece = d->direct && n >= ALIGN ? n / ALIGN * ALIGN : n;
        if (d->direct && piece % ALIGN != 0) {
            set_direct(d, false);
        }
        const ssize_t done = write(d->fd, p, piece);
        if (done < 0 && errno == EINTR) {
            continue;
        }
        if (done < 0 && errno == EINVAL && d->direct) { /* the file system took only the flag */
            set_direct(d, false);
            continue;
        }
        if (done <= 0) {
            return done < 0 ? errno : ENOSPC;
        }
        if (d->direct && (size_t)done % ALIGN != 0) {
            set_direct(d, false);
        }
        p += done;
        n -= (size_t)done;
    }
    return 0;
}

static void *run(void *arg)
{
    dsi_direct *d = arg;
    (void)pthread_mutex_lock(&d->lock);
    for (;;) {
        while (d->pending == NULL && !d->quit) {
            (void)pthread_cond_wait(&d->changed, &d->lock);
        }
        if (d->pending == NULL) {
            break;
        }
        const uint8_t *data = d->pending;
        const size_t n = d->pending_bytes;
        const bool failed = d->reason != 0;
        (void)pthread_mutex_unlock(&d->lock);
        const int reason = failed ? 0 : write_all(d, data, n);
        (void)pthread_mutex_lock(&d->lock);
        d->reason = d->reason != 0 ? d->reason : reason;
        d->pending = NULL;
        (void)pthread_cond_broadcast(&d->changed);
    }
    (void)pthread_mutex_unlock(&d->lock);
    return NULL;
}

dsi_direct *dsi_direct_start(int fd)
{
    dsi_direct *d = calloc(1, sizeof *d);
    void *memory = NULL;
    if (d == NULL || posix_memalign(&memory, ALIGN, DSI_DIRECT_BYTES) != 0) {
        free(d);
        return NULL;
    }
    d->fd = fd;
    d->memory = memory;
    (void)pthread_mutex_init(&d->lock, NULL);
    (void)pthread_cond_init(&d->changed, NULL);
    if (dsi_thread_create(&d->thread, run, d) != 0) {
        (void)pthread_cond_destroy(&d->changed);
        (void)pthread_mutex_destroy(&d->lock);
        free(memory);
        free(d);
        return NULL;
    }
    set_direct(d, true);
    return d;
}

/* Waits until the thread is idle; 0 or the errno of what it did. */
static int wait_idle(dsi_direct *d)
{
    (void)pthread_mutex_lock(&d->lock);
    while (d->pending != NULL) {
        (void)pthread_cond_wait(&d->changed, &d->lock);
    }
    const int reason = d->reason;
    (void)pthread_mutex_unlock(&d->lock);
    return reason;
}

static int hand_over(dsi_direct *d)
{
    const int reason = wait_idle(d);
    if (reason != 0) {
        return reason;
    }
    (void)pthread_mutex_lock(&d->lock);
    d->pending = d->memory + d->current * BUFFER_BYTES;
    d->pending_bytes = d->filled;
    (void)pthread_cond_broadcast(&d->changed);
    (void)pthread_mutex_unlock(&d->lock);
    d->current = (d->current + 1) % N_BUFFERS;
    d->filled = 0;
    return 0;
}

int dsi_direct_write(dsi_direct *d, const void *data, size_t n)
{
    const uint8_t *p = data;
    while (n > 0) {
        const size_t room = BUFFER_BYTES - d->filled;
        const size_t piece = n < room ? n : room;
        memcpy(d->memory + d->current * BUFFER_BYTES + d->filled, p, piece);
        d->filled += piece;
        p += piece;
        n -= piece;
        if (d->filled == BUFFER_BYTES) {
            const int reason = hand_over(d);
            if (reason != 0) {
                return reason;
            }
        }
    }
    return 0;
}

int dsi_direct_drain(dsi_direct *d)
{
    const int reason = d->filled > 0 ? hand_over(d) : 0;
    return reason != 0 ? reason : wait_idle(d);
}

void dsi_direct_end(dsi_direct **direct)
{
    dsi_direct *d = direct != NULL ? *direct : NULL;
    if (d == NULL) {
        return;
    }
    (void)pthread_mutex_lock(&d->lock);
    d->quit = true;
    (void)pthread_cond_broadcast(&d->changed);
    (void)pthread_mutex_unlock(&d->lock);
    (void)pthread_join(d->thread, NULL);
    (void)pthread_cond_destroy(&d->changed);
    (void)pthread_mutex_destroy(&d->lock);
    free(d->memory);
    free(d);
    *direct = NULL;
}
