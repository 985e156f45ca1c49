/* SPDX-License-Identifier: Apache-2.0 */
/* What lies in the shared memory of a group of ranks: one block for each rank.
 *
 * Only the rank itself writes its block, but for `taken` and `consumed` of a channel, which its
 * receiver writes, and the head's abort fields. Everything starts as zero. Counters only grow.
 */
#ifndef DSI_COMM_SHM_LAYOUT_H
#define DSI_COMM_SHM_LAYOUT_H

#include "comm/comm_call.h"
#include <sched.h>
#include <stdatomic.h>

enum {
    SHM_LINE = 64,
    SHM_SLOTS = 16,              /* collectives whose announcements may lie about at once */
    SHM_TINY = 40,               /* bytes that travel in the line of the announcement */
    SHM_INLINE = 16384,          /* bytes that travel beside it */
    SHM_INLINE_SYMMETRIC = 1024, /* of operands that could be read in place */
    SHM_CHUNK = 256 << 10,       /* bytes of a staging buffer; there are two of each sort */
    SHM_PULL_FROM = 32 << 10,    /* bytes of an operand that peers pull from private memory */
    SHM_PULL_SUMS_FROM = 16 << 10,
    SHM_INLINE_GATHER = 2048, /* bytes of a slice of an all-gather; longer ones are pulled */
    SHM_SCRATCH = 256 << 10,  /* bytes for what they pull before they sum it */
    SHM_MESSAGES = 4,         /* messages between two ranks that may lie about at once */
    SHM_MESSAGE_TINY = 32,    /* bytes that travel in the line of its announcement */
    SHM_PAIR_CHUNK = 64 << 10,
    SHM_REASON = 1024
};

/* A rank has started collective number `posted` (and this slot is the newest of its place). */
typedef struct shm_slot {
    _Alignas(SHM_LINE) _Atomic uint64_t posted;
    uint64_t digest;
    double when; /* of the start; one clock for all processes of a host */
    unsigned char tiny[SHM_TINY];
} shm_slot;

typedef struct shm_counter {
    _Alignas(SHM_LINE) _Atomic uint64_t value;
} shm_counter;

/* The doorbell of a process: who changes something that it may wait for, and sees it asleep, adds
 * to `rings` and wakes it. Used in the block of the first group (the job) only. */
typedef struct shm_bell {
    _Alignas(SHM_LINE) _Atomic uint32_t rings;
    _Alignas(SHM_LINE) _Atomic uint32_t n_sleepers;
} shm_bell;

/* One message of a channel. */
typedef struct shm_message {
    _Alignas(SHM_LINE) _Atomic uint64_t posted; /* its number, from 1 */
    uint64_t digest;
    double when;
    uint32_t mode; /* shm_mode */
    unsigned char tiny[SHM_MESSAGE_TINY];
    _Alignas(SHM_LINE) dsi_call_info info;
    _Alignas(SHM_LINE) unsigned char data[SHM_INLINE]; /* the bytes, or the offsets of the parts */
} shm_message;

/* From the rank of the block to one other. */
typedef struct shm_channel {
    shm_counter produced; /* chunks */
    shm_counter consumed; /* chunks; the receiver writes it */
    shm_counter taken;    /* messages; the receiver writes it */
    shm_message messages[SHM_MESSAGES];
    _Alignas(SHM_LINE) unsigned char chunks[2][SHM_PAIR_CHUNK];
} shm_channel;

typedef enum shm_mode {
    SHM_MODE_NONE,
    SHM_MODE_INLINE, /* the bytes lie beside the announcement */
    SHM_MODE_PLACE,  /* peers read the operand where it lies */
    SHM_MODE_PULL,   /* peers let the system copy it from where it lies */
    SHM_MODE_STAGED  /* the bytes go through the staging buffers */
} shm_mode;

typedef struct shm_block {
    shm_bell bell;
    shm_counter done;             /* collectives that this rank needs nothing of any more */
    shm_counter put, summed, got; /* staged chunks: copied in, reduced, copied out */
    shm_counter started;          /* calls; a number for diagnoses */
    _Alignas(SHM_LINE) _Atomic uint32_t ready, left; /* came; went in order */
    _Atomic uint64_t waiting;       /* in a wait for this collective number; 0: not */
    _Atomic uint64_t away_until[2]; /* ms of the clock; the first thread, that of a twin waits
                                       outside of shared memory; 0: not */
    int64_t pid;
    uint64_t pid_space; /* inode of its process namespace */
    cpu_set_t cores;
    _Alignas(SHM_LINE) shm_slot slots[SHM_SLOTS];
    dsi_call_info infos[SHM_SLOTS];
    dsi_call_info last_pair; /* the newest message started, for diagnoses */
    _Alignas(SHM_LINE) unsigned char beside[SHM_SLOTS][SHM_INLINE];
    _Alignas(4096) unsigned char stage_in[2][SHM_CHUNK];
    unsigned char stage_out[2][SHM_CHUNK];
    shm_channel channels[]; /* [size] */
} shm_block;

#define SHM_MAGIC UINT64_C(0x31306d6873736421)

typedef struct shm_head {
    uint64_t magic;
    uint32_t size;
    uint32_t block_bytes_low;                    /* layouts of different builds differ: a check */
    _Alignas(SHM_LINE) _Atomic uint32_t aborted; /* 0, 1 while the reason is written, then 2 */
    char reason[SHM_REASON];
} shm_head;

static inline size_t shm_block_bytes(uint32_t size)
{
    const size_t bytes = sizeof(shm_block) + (size_t)size * sizeof(shm_channel);
    return (bytes + 4095) / 4096 * 4096;
}

static inline size_t shm_group_bytes(uint32_t size)
{
    return 4096 + shm_block_bytes(size) * size;
}

#endif
