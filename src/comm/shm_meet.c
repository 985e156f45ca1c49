/* SPDX-License-Identifier: Apache-2.0 */
/* How processes of one host meet and pass descriptors to one another.
 *
 * Each rank binds a datagram socket (shm_note.h). The ranks say hello to rank 0 until it answers
 * with a descriptor of the group's memory; later groups and symmetric memory go the same way, from
 * the first rank of the group to its members, told apart by a tag. While ranks are missing, rank 0
 * tells the others which.
 */
#include "comm/shm_note.h"
#include "comm/shm_stray.h"

#include "base/clock.h"
#include "comm/launcher_note.h"
#include "comm/meet_wait.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* A host's name, as much of it as a line has room for. */
enum { HOST_BYTES = 64 };
#define TELL_SECONDS 1.0 /* rank 0 reports who is missing so often */

ds_status shm_memory_create(ds_ctx *ctx, size_t bytes, int *fd_out)
{
    const int fd = memfd_create("deepspeed", MFD_CLOEXEC);
    if (fd < 0) {
        return ds_fail(ctx, DS_ERR_UNSUPPORTED, "memfd_create: %s; shared memory needs Linux 3.17",
                       strerror(errno));
    }
    if (ftruncate(fd, (off_t)bytes) != 0) {
        const ds_status status =
            ds_fail(ctx, DS_ERR_NOMEM, "%zu bytes of shared memory: %s", bytes, strerror(errno));
        (void)close(fd);
        return status;
    }
    *fd_out = fd;
    return DS_OK;
}

ds_status shm_give(ds_ctx *ctx, shm_job *job, const uint32_t *world_ranks, uint32_t n, uint64_t tag,
                   int fd)
{
    const shm_note what = shm_note_make(job, NOTE_MEMORY, tag);
    for (uint32_t i = 0; i < n; ++i) {
        if (world_ranks[i] == job->rank) {
            continue;
        }
        const int error = shm_note_send(job, world_ranks[i], &what, fd);
        if (error != 0) {
            return ds_fail(ctx, DS_ERR_PEER, "rank %u cannot be given shared memory: %s",
                           world_ranks[i], strerror(error));
        }
    }
    return DS_OK;
}

static bool take_parked(shm_job *job, uint64_t tag, int *fd_out)
{
    for (uint32_t i = 0; i < SHM_PARKED; ++i) {
        if (job->parked[i].tag == tag && tag != 0) {
            *fd_out = job->parked[i].fd;
            job->parked[i].tag = 0;
            return true;
        }
    }
    return false;
}

/* A descriptor for a group whose turn has not come. */
static void park(shm_job *job, uint64_t tag, int fd)
{
    for (uint32_t i = 0; i < SHM_PARKED; ++i) {
        if (job->parked[i].tag == 0) {
            job->parked[i].tag = tag;
            job->parked[i].fd = fd;
            return;
        }
    }
    (void)close(fd);
}

ds_status shm_receive(ds_ctx *ctx, shm_job *job, uint64_t tag, double timeout, int *fd_out)
{
    const double deadline = dsi_clock_seconds() + timeout;
    shm_note what;
    int fd;
    while (!take_parked(job, tag, fd_out)) {
        if (shm_note_receive(job, &what, &fd) && fd >= 0) {
            park(job, what.tag, fd);
        } else if (timeout > 0.0 && dsi_clock_seconds() > deadline) {
            return ds_fail(ctx, DS_ERR_PEER,
                           "the first rank of the group has not given its shared memory within "
                           "%.1f s",
                           timeout);
        }
    }
    return DS_OK;
}

static void tell_all(const shm_job *job, const bool *came, shm_note_kind kind, uint32_t missing,
                     const char *text)
{
    shm_note what = shm_note_make(job, kind, kind == NOTE_MISSING ? missing : 0);
    (void)snprintf(what.text, sizeof what.text, "%s", text);
    for (uint32_t r = 0; r < job->size; ++r) {
        if (came[r] && r != job->rank) {
            (void)shm_note_send(job, r, &what, -1);
        }
    }
}

static ds_status check_hello(ds_ctx *ctx, const dsi_shm_params *params, const shm_job *job,
                             const shm_note *what)
{
    if (what->size != job->size) {
        return ds_fail(ctx, DS_ERR_PEER, "rank %u expects %u ranks on this host, rank 0 expects %u",
                       what->rank, what->size, job->size);
    }
    if (what->block_bytes != sizeof(shm_block)) {
        return ds_fail(ctx, DS_ERR_PEER,
                       "rank %u runs another build of this library than rank 0 (shared layout of "
                       "%u and %zu bytes)",
                       what->rank, what->block_bytes, sizeof(shm_block));
    }
    char text[512];
    return params->card != NULL &&
                   dsi_job_card_differs(params->card, what->text, what->rank, text, sizeof text)
               ? ds_fail(ctx, DS_ERR_PEER, "%s", text)
               : DS_OK;
}

/* "rank 1 of 2 on HOST". */
static void name_missing(const bool *came, uint32_t size, char *text, size_t n)
{
    char host[HOST_BYTES] = "";
    char ranks[128];
    (void)gethostname(host, sizeof host - 1);
    dsi_meet_missing(came, size, ranks, sizeof ranks);
    (void)snprintf(text, n, "%s of %u on %s", ranks, size, host);
}

/* `missing` is the first of them. */
static ds_status never_joined(ds_ctx *ctx, const dsi_shm_params *params, uint32_t missing,
                              const char *who)
{
    dsi_launcher_report_absent(params->first + missing, params->timeout);
    return ds_fail(ctx, DS_ERR_PEER,
                   "%s did not join within %g s: is it started, does it get as far as the others? "
                   "DEEPSPEED_TIMEOUT (minutes) sets how long is waited",
                   who, params->timeout);
}

/* What rank 0 does with a note while it gathers. */
static ds_status take_note(ds_ctx *ctx, const dsi_shm_params *params, const shm_job *job,
                           const shm_note *what, bool *came)
{
    if (what->kind == NOTE_GONE) {
        came[what->rank] = true; /* its place takes the refusal */
        dsi_launcher_report_absent(params->first + what->rank, 0.0);
        return ds_fail(ctx, DS_ERR_PEER, "%s", what->text);
    }
    if (what->kind == NOTE_HELLO) {
        came[what->rank] = true;
        return check_hello(ctx, params, job, what);
    }
    return DS_OK;
}

/* The first rank that has not come; `size` when all have. */
static uint32_t first_missing(const bool *came, uint32_t size)
{
    uint32_t r = 0;
    while (r < size && came[r]) {
        ++r;
    }
    return r;
}

static bool all_came(const bool *came, uint32_t size)
{
    return first_missing(came, size) == size;
}

/* While rank 0 waits: reports who is missing, or gives up. */
static ds_status wait_on(ds_ctx *ctx, const dsi_shm_params *params, const shm_job *job,
                         const bool *came, dsi_meet_wait *wait, double *told)
{
    const uint32_t missing = first_missing(came, job->size);
    const double now = dsi_clock_seconds();
    const bool over = dsi_meet_wait_over(wait);
    char who[256];
    if (!over && now < *told + TELL_SECONDS) {
        return DS_OK;
    }
    *told = now;
    name_missing(came, job->size, who, sizeof who);
    if (over) {
        return never_joined(ctx, params, missing, who);
    }
    tell_all(job, came, NOTE_MISSING, missing, who);
    if (dsi_meet_wait_due(wait)) {
        dsi_meet_wait_say(ctx, wait, job->rank, who);
    }
    return DS_OK;
}

/* Rank 0: gathers the others, then gives them the memory. */
static ds_status gather(ds_ctx *ctx, const dsi_shm_params *params, shm_job *job, int fd)
{
    bool came[DSI_SHM_MAX_RANKS] = {true};
    uint32_t ranks[DSI_SHM_MAX_RANKS];
    ds_status status = DS_OK;
    shm_note what;
    int other;
    dsi_meet_wait wait = dsi_meet_wait_begin(params->timeout);
    double told = wait.begin;
    shm_stray stray = shm_stray_begin(params, job);
    while (!all_came(came, job->size) && status == DS_OK) {
        if (shm_note_receive(job, &what, &other)) {
            status = take_note(ctx, params, job, &what, came);
        }
        if (other >= 0) {
            (void)close(other);
        }
        if (status == DS_OK && !all_came(came, job->size)) {
            status = wait_on(ctx, params, job, came, &wait, &told);
            status = status < 0 ? status : shm_stray_look(ctx, &stray, came);
        }
    }
    shm_stray_end(&stray);
    if (status < 0) {
        tell_all(job, came, NOTE_REFUSED, 0, ds_ctx_error(ctx));
        return status;
    }
    for (uint32_t r = 0; r < job->size; ++r) {
        ranks[r] = r;
    }
    return shm_give(ctx, job, ranks, job->size, 1, fd);
}

/* An answer of rank 0, or of what stands in its place. DS_IN_PROGRESS: not yet the memory. */
static ds_status take_answer(ds_ctx *ctx, const dsi_shm_params *params, shm_job *job,
                             shm_note *missing, int *fd_out)
{
    shm_note what;
    int fd;
    if (!shm_note_receive(job, &what, &fd)) {
        return DS_IN_PROGRESS;
    }
    if (what.kind == NOTE_GONE) { /* before the launcher can see this rank fail */
        dsi_launcher_report_absent(params->first + what.rank, 0.0);
    }
    if (what.kind == NOTE_REFUSED || what.kind == NOTE_GONE) {
        return ds_fail(ctx, DS_ERR_PEER, "%s", what.text);
    }
    if (what.kind == NOTE_MISSING) {
        *missing = what;
    }
    if (fd >= 0 && what.tag == 1) {
        *fd_out = fd;
        return DS_OK;
    }
    if (fd >= 0) {
        park(job, what.tag, fd);
    }
    return DS_IN_PROGRESS;
}

/* One hello and its answers, for half a second at most. DS_IN_PROGRESS: not yet the memory. */
static ds_status ask_once(ds_ctx *ctx, const dsi_shm_params *params, shm_job *job,
                          const shm_note *hello, bool *heard, shm_note *missing, int *fd_out)
{
    const int error = shm_note_send(job, 0, hello, -1);
    if (*heard && error == ECONNREFUSED) {
        return ds_fail(ctx, DS_ERR_PEER, "rank 0 of this host went away while the ranks met");
    }
    *heard = *heard || error == 0;
    if (error != 0) {
        const struct timespec pause = {0, 2000000};
        (void)nanosleep(&pause, NULL);
        return DS_IN_PROGRESS;
    }
    ds_status status = DS_IN_PROGRESS;
    for (int tries = 0; tries < 5 && status == DS_IN_PROGRESS; ++tries) {
        status = take_answer(ctx, params, job, missing, fd_out);
    }
    return status;
}

/* The others: hello until rank 0 answers. */
static ds_status say_hello(ds_ctx *ctx, const dsi_shm_params *params, shm_job *job, int *fd_out)
{
    shm_note hello = shm_note_make(job, NOTE_HELLO, 0);
    dsi_meet_wait wait = dsi_meet_wait_begin(params->timeout);
    shm_stray stray = shm_stray_begin(params, job);
    shm_note missing = {.tag = 0}; /* rank 0, as long as nothing is heard of it */
    bool came[DSI_SHM_MAX_RANKS];
    bool heard = false;
    ds_status status = DS_IN_PROGRESS;
    memset(came, true, sizeof came);
    came[0] = false;
    name_missing(came, job->size, missing.text, sizeof missing.text);
    (void)snprintf(hello.text, sizeof hello.text, "%s", params->card != NULL ? params->card : "");
    while (status == DS_IN_PROGRESS) {
        status = ask_once(ctx, params, job, &hello, &heard, &missing, fd_out);
        if (status == DS_IN_PROGRESS && dsi_meet_wait_over(&wait)) {
            status = never_joined(ctx, params, (uint32_t)missing.tag, missing.text);
        }
        if (status == DS_IN_PROGRESS && !heard) { /* once it is there it says who is missing */
            const ds_status shown = shm_stray_show(ctx, &stray);
            status = shown < 0 ? shown : status;
            if (dsi_meet_wait_due(&wait)) {
                dsi_meet_wait_say(ctx, &wait, job->rank, missing.text);
            }
        }
    }
    shm_stray_end(&stray);
    return status;
}

ds_status shm_meet(ds_ctx *ctx, const dsi_shm_params *params, shm_job *job, int *fd_out)
{
    shm_note_name(params, job);
    DS_TRY(shm_note_open(ctx, job));
    if (job->rank > 0) {
        return say_hello(ctx, params, job, fd_out);
    }
    int fd = -1;
    DS_TRY(shm_memory_create(ctx, shm_group_bytes(job->size), &fd));
    const ds_status status = gather(ctx, params, job, fd);
    if (status < 0) {
        (void)close(fd);
        return status;
    }
    *fd_out = fd;
    return DS_OK;
}
