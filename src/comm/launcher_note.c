/* SPDX-License-Identifier: Apache-2.0 */
/* See launcher_note.h. Called by what waits for ranks (shm_meet.c, rendezvous_*.c), by the
 * communicators of a mesh and by the launcher. */
#include "comm/launcher_note.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define NOTE_MAGIC UINT64_C(0x32746e6573626164)

typedef struct note {
    uint64_t magic;
    dsi_launcher_note what;
} note;

/* Returns the bytes of the address, 0 when the name does not fit. */
static socklen_t address_of(const char *name, struct sockaddr_un *address)
{
    const size_t n = strnlen(name, DSI_LAUNCHER_NAME_BYTES);
    memset(address, 0, sizeof *address);
    address->sun_family = AF_UNIX;
    if (n == 0 || n == DSI_LAUNCHER_NAME_BYTES) {
        return 0;
    }
    memcpy(address->sun_path + 1, name, n);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + n);
}

static void report(const dsi_launcher_note *what)
{
    const char *name = getenv(DSI_LAUNCHER_VARIABLE);
    struct sockaddr_un address;
    const socklen_t bytes = name != NULL ? address_of(name, &address) : 0;
    const int fd = bytes > 0 ? socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0) : -1;
    if (fd < 0) {
        return;
    }
    note one;
    memset(&one, 0, sizeof one);
    one.magic = NOTE_MAGIC;
    one.what = *what;
    (void)sendto(fd, &one, sizeof one, MSG_NOSIGNAL, (const struct sockaddr *)&address, bytes);
    (void)close(fd);
}

void dsi_launcher_report_absent(uint32_t rank, double seconds)
{
    report(&(dsi_launcher_note){.rank = rank, .seconds = seconds});
}

void dsi_launcher_report_coords(uint32_t rank, const char *coords)
{
    dsi_launcher_note what = {.rank = rank};
    (void)snprintf(what.coords, sizeof what.coords, "%s", coords);
    report(&what);
}

int dsi_launcher_listen(const char *name)
{
    const int on = 1;
    struct sockaddr_un address;
    const socklen_t bytes = address_of(name, &address);
    const int fd = bytes > 0 ? socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0) : -1;
    if (fd >= 0 && (setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof on) != 0 ||
                    bind(fd, (const struct sockaddr *)&address, bytes) != 0)) {
        (void)close(fd);
        return -1;
    }
    return fd;
}

static bool is_own_user(struct msghdr *message)
{
    for (struct cmsghdr *header = CMSG_FIRSTHDR(message); header != NULL;
         header = CMSG_NXTHDR(message, header)) {
        if (header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_CREDENTIALS) {
            struct ucred credentials;
            memcpy(&credentials, CMSG_DATA(header), sizeof credentials);
            return credentials.uid == geteuid();
        }
    }
    return false;
}

bool dsi_launcher_hear(int fd, dsi_launcher_note *note_out)
{
    for (;;) {
        note one;
        union {
            struct cmsghdr align;
            char bytes[CMSG_SPACE(sizeof(struct ucred))];
        } control;
        struct iovec data = {&one, sizeof one};
        struct msghdr message = {.msg_iov = &data,
                                 .msg_iovlen = 1,
                                 .msg_control = control.bytes,
                                 .msg_controllen = sizeof control.bytes};
        const ssize_t n = fd >= 0 ? recvmsg(fd, &message, MSG_DONTWAIT) : -1;
        if (n < 0) {
            return false;
        }
        if ((size_t)n == sizeof one && one.magic == NOTE_MAGIC && is_own_user(&message)) {
            *note_out = one.what;
            note_out->coords[DSI_COORDS_BYTES - 1] = '\0';
            return true;
        }
    }
}
