/* SPDX-License-Identifier: Apache-2.0 */
/* Datagrams between the processes of one host. See shm_note.h. */
#include "comm/shm_note.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <xxhash.h>

#define MEET_MAGIC UINT64_C(0x31746565746d7364)

void shm_note_name(const dsi_shm_params *params, shm_job *job)
{
    const size_t n = strlen(params->job);
    const XXH128_hash_t name = XXH3_128bits_withSeed(params->job, n, 11);
    job->token = XXH3_64bits_withSeed(params->job, n, 12);
    (void)snprintf(job->job_hash, sizeof job->job_hash, "%016llx%016llx",
                   (unsigned long long)name.high64, (unsigned long long)name.low64);
}

static socklen_t address_of(const shm_job *job, uint32_t rank, struct sockaddr_un *address)
{
    memset(address, 0, sizeof *address);
    address->sun_family = AF_UNIX;
    const int n = snprintf(address->sun_path + 1, sizeof address->sun_path - 1, "ds-%s-%u",
                           job->job_hash, rank);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

shm_note shm_note_make(const shm_job *job, shm_note_kind kind, uint64_t tag)
{
    return (shm_note){.magic = MEET_MAGIC,
                      .token = job->token,
                      .tag = tag,
                      .kind = (uint32_t)kind,
                      .rank = job->rank,
                      .size = job->size,
                      .block_bytes = (uint32_t)sizeof(shm_block),
                      .pid = getpid()};
}

int shm_note_send(const shm_job *job, uint32_t to, const shm_note *what, int fd)
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
    const int waits = what->kind == NOTE_MISSING ? MSG_DONTWAIT : 0; /* the next one does as well */
    for (;;) {
        if (sendmsg(job->socket, &message, MSG_NOSIGNAL | waits) >= 0) {
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

bool shm_note_receive(const shm_job *job, shm_note *what, int *fd_out)
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

ds_status shm_note_open(ds_ctx *ctx, shm_job *job)
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
