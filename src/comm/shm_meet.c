/* How processes of one host meet and hand descriptors to one another.
 *
 * Each rank binds a datagram socket in the abstract name space (no file), named by a hash of the
 * job's secret and its rank. The ranks say hello to rank 0 until it answers with a descriptor of
 * the group's memory; later groups and symmetric memory go the same way, from the first rank of the
 * group to its members, told apart by a tag. A datagram counts only when the kernel says that it
 * comes from the same user, and it carries a second hash of the secret. Sizes are fixed.
 */
#include "comm/shm_impl.h"

#include "base/clock.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#define MEET_MAGIC UINT64_C(0x31746565746d7364)

typedef enum note_kind { NOTE_HELLO = 1, NOTE_MEMORY, NOTE_REFUSED } note_kind;

typedef struct note {
    uint64_t magic, token, tag;
    uint32_t kind, rank, size, block_bytes;
    int64_t pid;
    char text[256];
} note;

static socklen_t address_of(const shm_job *job, uint32_t rank, struct sockaddr_un *address)
{
    memset(address, 0, sizeof *address);
    address->sun_family = AF_UNIX;
    const int n = snprintf(address->sun_path + 1, sizeof address->sun_path - 1, "ds-%s-%u",
                           job->job_hash, rank);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

static note make_note(const shm_job *job, note_kind kind, uint64_t tag)
{
    return (note){.magic = MEET_MAGIC,
                  .token = job->token,
                  .tag = tag,
                  .kind = (uint32_t)kind,
                  .rank = job->rank,
                  .size = job->size,
                  .block_bytes = (uint32_t)sizeof(shm_block),
                  .pid = getpid()};
}

/* 0 or an errno. fd < 0: none goes along. */
static int send_note(const shm_job *job, uint32_t to, const note *what, int fd)
{
    struct sockaddr_un address;
    const socklen_t address_bytes = address_of(job, to, &address);
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    memset(&control, 0, sizeof control);
    struct iovec data = {(void *)what, sizeof *what};
    struct msghdr message = {
        .msg_name = &address, .msg_namelen = address_bytes, .msg_iov = &data, .msg_iovlen = 1};
    if (fd >= 0) {
        message.msg_control = control.bytes;
        message.msg_controllen = sizeof control.bytes;
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(header), &fd, sizeof fd);
    }
    for (;;) {
        if (sendmsg(job->socket, &message, MSG_NOSIGNAL) >= 0) {
            return 0;
        }
        if (errno != EINTR) {
            return errno;
        }
    }
}

static void read_control(struct msghdr *message, int *fd_out, bool *same_user_out)
{
    for (struct cmsghdr *header = CMSG_FIRSTHDR(message); header != NULL;
         header = CMSG_NXTHDR(message, header)) {
        if (header->cmsg_level != SOL_SOCKET) {
            continue;
        }
        if (header->cmsg_type == SCM_RIGHTS && header->cmsg_len == CMSG_LEN(sizeof(int))) {
            memcpy(fd_out, CMSG_DATA(header), sizeof(int));
        } else if (header->cmsg_type == SCM_CREDENTIALS) {
            struct ucred credentials;
            memcpy(&credentials, CMSG_DATA(header), sizeof credentials);
            *same_user_out = credentials.uid == geteuid();
        }
    }
}

/* One datagram of ours; false after a tenth of a second without. */
static bool receive_note(const shm_job *job, note *what, int *fd_out)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int)) + CMSG_SPACE(sizeof(struct ucred))];
    } control;
    struct iovec data = {what, sizeof *what};
    struct msghdr message = {.msg_iov = &data,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    *fd_out = -1;
    const ssize_t n = recvmsg(job->socket, &message, MSG_CMSG_CLOEXEC);
    if (n < 0) {
        return false;
    }
    bool same_user = false;
    read_control(&message, fd_out, &same_user);
    if ((size_t)n != sizeof *what || !same_user || what->magic != MEET_MAGIC ||
        what->token != job->token || what->rank >= job->size) {
        if (*fd_out >= 0) {
            (void)close(*fd_out);
        }
        *fd_out = -1;
        return false;
    }
    what->text[sizeof what->text - 1] = '\0';
    return true;
}

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
    const note what = make_note(job, NOTE_MEMORY, tag);
    for (uint32_t i = 0; i < n; ++i) {
        if (world_ranks[i] == job->rank) {
            continue;
        }
        const int error = send_note(job, world_ranks[i], &what, fd);
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
    note what;
    int fd;
    while (!take_parked(job, tag, fd_out)) {
        if (receive_note(job, &what, &fd) && fd >= 0) {
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

static ds_status open_socket(ds_ctx *ctx, shm_job *job)
{
    struct sockaddr_un address;
    const socklen_t address_bytes = address_of(job, job->rank, &address);
    const int on = 1;
    const struct timeval tenth = {0, 100000};
    const struct timeval long_time = {10, 0};
    job->socket = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (job->socket < 0 || setsockopt(job->socket, SOL_SOCKET, SO_PASSCRED, &on, sizeof on) != 0 ||
        setsockopt(job->socket, SOL_SOCKET, SO_RCVTIMEO, &tenth, sizeof tenth) != 0 ||
        setsockopt(job->socket, SOL_SOCKET, SO_SNDTIMEO, &long_time, sizeof long_time) != 0) {
        return ds_fail(ctx, DS_ERR_IO, "a socket between ranks of this host: %s", strerror(errno));
    }
    if (bind(job->socket, (const struct sockaddr *)&address, address_bytes) != 0) {
        return ds_fail(ctx, errno == EADDRINUSE ? DS_ERR_PEER : DS_ERR_IO,
                       "rank %u of this job cannot meet the others: %s%s", job->rank,
                       strerror(errno),
                       errno == EADDRINUSE ? " (another process is this rank already)" : "");
    }
    return DS_OK;
}

static void refuse_all(const shm_job *job, const bool *came, const char *text)
{
    note what = make_note(job, NOTE_REFUSED, 0);
    (void)snprintf(what.text, sizeof what.text, "%s", text);
    for (uint32_t r = 1; r < job->size; ++r) {
        if (came[r]) {
            (void)send_note(job, r, &what, -1);
        }
    }
}

static ds_status check_hello(ds_ctx *ctx, const shm_job *job, const note *what)
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
    return DS_OK;
}

static void missing_ranks(const bool *came, uint32_t size, char *text, size_t n)
{
    size_t used = 0;
    text[0] = '\0';
    for (uint32_t r = 1; r < size && used < n; ++r) {
        if (!came[r]) {
            used += (size_t)snprintf(text + used, n - used, "%s%u", used > 0 ? ", " : "", r);
        }
    }
}

/* Rank 0: gathers the others, then gives them the memory. */
static ds_status gather(ds_ctx *ctx, const dsi_shm_params *params, shm_job *job, int fd)
{
    bool came[DSI_SHM_MAX_RANKS] = {false};
    uint32_t ranks[DSI_SHM_MAX_RANKS];
    ds_status status = DS_OK;
    uint32_t n = 1;
    note what;
    int other;
    const double deadline = dsi_clock_seconds() + params->timeout;
    while (n < job->size && status == DS_OK) {
        if (receive_note(job, &what, &other) && what.kind == NOTE_HELLO) {
            status = check_hello(ctx, job, &what);
            n += came[what.rank] ? 0 : 1;
            came[what.rank] = true;
        } else if (params->timeout > 0.0 && dsi_clock_seconds() > deadline) {
            char missing[160];
            missing_ranks(came, job->size, missing, sizeof missing);
            status = ds_fail(ctx, DS_ERR_PEER,
                             "after %.1f s these ranks of this host have not come: %s (of %u)",
                             params->timeout, missing, job->size);
        }
        if (other >= 0) {
            (void)close(other);
        }
    }
    if (status < 0) {
        refuse_all(job, came, ds_ctx_error(ctx));
        return status;
    }
    for (uint32_t r = 0; r < job->size; ++r) {
        ranks[r] = r;
    }
    return shm_give(ctx, job, ranks, job->size, 1, fd);
}

/* The others: hello until rank 0 answers. */
static ds_status say_hello(ds_ctx *ctx, const dsi_shm_params *params, shm_job *job, int *fd_out)
{
    const note hello = make_note(job, NOTE_HELLO, 0);
    const double deadline = dsi_clock_seconds() + params->timeout;
    bool heard = false;
    note what;
    for (;;) {
        const int error = send_note(job, 0, &hello, -1);
        const bool was_there = heard && error == ECONNREFUSED;
        heard = heard || error == 0;
        if (was_there || (params->timeout > 0.0 && dsi_clock_seconds() > deadline)) {
            return ds_fail(ctx, DS_ERR_PEER, "rank 0 of this host %s",
                           was_there ? "went away while the ranks met"
                           : heard   ? "has not gathered all ranks in time"
                                     : "has not come");
        }
        if (error != 0) {
            const struct timespec pause = {0, 2000000};
            (void)nanosleep(&pause, NULL);
            continue;
        }
        for (int tries = 0; tries < 5; ++tries) {
            int fd;
            if (!receive_note(job, &what, &fd)) {
                continue;
            }
            if (what.kind == NOTE_REFUSED) {
                return ds_fail(ctx, DS_ERR_PEER, "rank 0 of this host: %s", what.text);
            }
            if (fd >= 0 && what.tag == 1) {
                *fd_out = fd;
                return DS_OK;
            }
            if (fd >= 0) {
                park(job, what.tag, fd);
            }
        }
    }
}

ds_status shm_meet(ds_ctx *ctx, const dsi_shm_params *params, shm_job *job, int *fd_out)
{
    const size_t n = strlen(params->job);
    const XXH128_hash_t name = XXH3_128bits_withSeed(params->job, n, 11);
    job->token = XXH3_64bits_withSeed(params->job, n, 12);
    (void)snprintf(job->job_hash, sizeof job->job_hash, "%016llx%016llx",
                   (unsigned long long)name.high64, (unsigned long long)name.low64);
    DS_TRY(open_socket(ctx, job));
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
