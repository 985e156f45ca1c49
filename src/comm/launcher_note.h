/* SPDX-License-Identifier: Apache-2.0 */
/* What a rank reports to the launcher of its host: which rank it waited for in vain, and where it
 * stands in the mesh. The launcher alone sees all ranks of the host end, and else would blame the
 * one that gave up.
 *
 * A datagram socket in the abstract name space (no file); the launcher gives its name to the ranks
 * in DS_LAUNCHER. A datagram counts only when the kernel says that it comes from the same user.
 */
#ifndef DSI_COMM_LAUNCHER_NOTE_H
#define DSI_COMM_LAUNCHER_NOTE_H

#include <deepspeed/status.h>
#include <stdbool.h>
#include <stdint.h>

#define DSI_LAUNCHER_VARIABLE "DS_LAUNCHER"

enum { DSI_LAUNCHER_NAME_BYTES = 64, DSI_COORDS_BYTES = 48 };

typedef struct dsi_launcher_note {
    uint32_t rank;                 /* of the job */
    char coords[DSI_COORDS_BYTES]; /* of the rank that reports: "dp 2, tp 1"; "": an absence */
    double seconds; /* so long the rank was waited for, and did not join; 0: it ended with code 0
                       and was not waited for */
} dsi_launcher_note;

/* These do nothing where no launcher listens, and never wait. */
void dsi_launcher_report_absent(uint32_t rank, double seconds);
void dsi_launcher_report_coords(uint32_t rank, const char *coords);

/* The launcher's end, non-blocking; the caller closes it. `name`: less than DSI_LAUNCHER_NAME_BYTES
 * characters. -1: the system refuses, ranks are then not heard. */
int dsi_launcher_listen(const char *name);

/* The next note; false when there is none. */
bool dsi_launcher_hear(int fd, dsi_launcher_note *note_out);

#endif
