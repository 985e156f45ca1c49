/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by aio*.c: files, requests, pieces, workers.
 *
 * A request (one call) is cut into pieces (one system call each) by whichever worker has room.
 *
 * Invariants, with dsi_aio.lock held:
 * 1. A request is in exactly one state: FREE (on the free list), ACTIVE, or DONE.
 * 2. An ACTIVE request is on the queue of its direction iff cut < bytes and reason == 0.
 * 3. It becomes DONE when it leaves the queue for good and n_flying is 0: then nothing touches its
 *    buffer any more.
 * 4. reason is the first error of the piece at the lowest offset among those that failed.
 * Pieces belong to the worker that took them, and need no lock.
 */
#ifndef DSI_IO_AIO_IMPL_H
#define DSI_IO_AIO_IMPL_H

#include "io/aio.h"
#include <pthread.h>

enum {
    AIO_READ = 0,
    AIO_WRITE = 1,
    AIO_END_OF_FILE = -1 /* a reason beside errno's: the file ends before the range */
};

/* One file of the file system. */
typedef struct aio_part {
    char *path;  /* for messages */
    int direct;  /* opened with O_DIRECT; -1: not possible */
    int plain;   /* opened without */
    int own;     /* opened with it for the mover; -1: there is none */
    void *moved; /* as the mover knows it */
} aio_part;

typedef struct aio_file {
    aio_part *parts; /* NULL: free entry */
    uint32_t n_parts;
    uint64_t stripe_bytes; /* when n_parts > 1: stripe k is the (k / n_parts)-th of part k % n */
    uint64_t bytes;        /* of a scratch file; UINT64_MAX: as it is found */
    bool direct;           /* guarded by the lock: a file system may refuse late */
} aio_file;

typedef enum aio_state { AIO_FREE, AIO_ACTIVE, AIO_DONE } aio_state;

typedef struct aio_request {
    aio_state state;
    uint32_t generation; /* of the ticket */
    uint32_t file;
    int direction;
    bool moves; /* the buffer is the mover's memory */
    uint8_t *buffer;
    uint64_t offset;
    size_t bytes;
    size_t cut;             /* bytes that have become pieces */
    uint32_t n_flying;      /* pieces that a worker holds */
    int reason;             /* 0, errno or AIO_END_OF_FILE */
    uint64_t reason_offset; /* in the logical file */
    uint32_t reason_part;
    double submitted, ended;  /* clock */
    struct aio_request *next; /* in its queue or in the free list */
} aio_request;

typedef struct aio_piece {
    aio_request *request;
    uint8_t *user;   /* the request's memory */
    uint8_t *memory; /* what the system is given: user, or the worker's copy */
    int fd;
    int plain;   /* to go on with when the rest is misaligned */
    void *moved; /* not NULL: the mover's file, and fd and plain are not used */
    int direction;
    uint32_t part;
    uint64_t offset;  /* in the part */
    uint64_t logical; /* in the file */
    size_t bytes, done;
    double began;       /* clock */
    double stuck_since; /* of EAGAIN after EAGAIN; 0: not stuck */
    bool is_direct, is_copied;
} aio_piece;

typedef struct aio_queue {
    aio_request *head, *tail;
} aio_queue;

typedef struct aio_worker {
    dsi_aio *aio;
    pthread_t thread;
    bool asleep;     /* guarded by the lock: wants a wake-up through wake_fd */
    int wake_fd;     /* of io_uring workers; -1 */
    void *ring;      /* of aio_uring.c */
    uint8_t *copies; /* n_slots of copy_bytes; pages are only taken when used */
    uint32_t n_slots;
} aio_worker;

struct dsi_aio {
    ds_ctx *ctx;
    ds_aio_params io;
    dsi_aio_mover mover; /* move NULL: there is none */
    size_t copy_bytes;   /* of one slot's copy */
    char **folders;
    uint32_t n_folders;
    uint64_t stripe_bytes;
    pthread_mutex_t lock;
    pthread_cond_t work; /* pieces to take, or quit: workers of threads wait here */
    pthread_cond_t done; /* a request is done */
    aio_file *files;
    uint32_t max_files;
    aio_request *requests;
    uint32_t max_requests;
    aio_request *free_list;
    aio_queue queues[2];    /* by direction */
    int turn;               /* the direction that is asked first */
    uint64_t waiting_bytes; /* of all queues, not cut yet */
    uint32_t n_active;
    bool quit;
    double patience;
    bool stuck;      /* a wait has lost its patience */
    bool told_plain; /* that a file goes through the page cache */
    dsi_aio_stats stats;
    aio_worker *workers;
    uint32_t n_workers;
    uint32_t n_started;
};

/* ---- aio_wait.c ---- */

/* False: a wait has lost its patience, and what was in flight then still is. */
bool dsi_aio_answers(dsi_aio *aio);

/* ---- aio_file.c ---- */

void dsi_aio_file_close(dsi_aio *aio, aio_file *file);
/* Where byte `offset` of a file lies, and how many bytes follow it there in one piece. */
void dsi_aio_file_locate(const aio_file *file, uint64_t offset, uint32_t *part_out,
                         uint64_t *offset_out, uint64_t *run_out);
/* Stops direct transfers to the file of a piece that the file system refused, and says so. */
void dsi_aio_file_refused(dsi_aio *aio, const aio_piece *piece);

/* ---- aio_piece.c: called by workers ---- */

/* Cuts the next piece, with the lock held; `copy` is the slot's memory of copy_bytes. False: there
 * is none. */
bool dsi_aio_take(dsi_aio *aio, aio_piece *piece_out, uint8_t *copy);
/* Before its first transfer: fills the copy of a write. */
void dsi_aio_piece_begin(aio_piece *piece);
/* Takes the result of a transfer (bytes, or -errno). True: transfer the rest. False: it is over,
 * *reason_out says how: call dsi_aio_piece_end. */
bool dsi_aio_piece_go_on(dsi_aio *aio, aio_piece *piece, int64_t result, int *reason_out);
void dsi_aio_piece_end(dsi_aio *aio, aio_piece *piece, int reason);

/* ---- workers ---- */

ds_status dsi_aio_start_threads(dsi_aio *aio);
/* ERR_UNSUPPORTED, with a message, where there is no io_uring. */
ds_status dsi_aio_start_uring(dsi_aio *aio);
/* n_workers with n_slots pieces each, not running yet. What fails is cleared by dsi_aio_stop. */
ds_status dsi_aio_make_workers(dsi_aio *aio, uint32_t n_workers, uint32_t n_slots);
ds_status dsi_aio_run_workers(dsi_aio *aio, void *(*run)(void *));
/* Ends the workers, which must have nothing to do, and frees them. */
void dsi_aio_stop(dsi_aio *aio);
/* Of aio_uring.c; nothing on other workers. */
void dsi_aio_free_ring(aio_worker *worker);

#endif
