/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzer of rendezvous frames: any bytes, in one piece and cut into two; what is accepted is
 * written again and must be the same bytes up to the code. Build with clang
 * -fsanitize=fuzzer,address,undefined.
 */
#include "comm/rendezvous_frame.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_again(const rdv_frame *frame, const uint8_t *data, size_t used)
{
    rdv_channel channel = {.direction = 'C', .proved = true};
    rdv_channel other = channel;
    uint8_t *again = malloc(used);
    if (again == NULL) {
        return;
    }
    if (rdv_frame_bytes(frame) != used) {
        abort();
    }
    rdv_frame_write(frame, &channel, again);
    if (memcmp(again, data, used - RDV_CODE_BYTES) != 0 ||
        !rdv_frame_authentic(&other, again, used)) {
        abort();
    }
    other.n_frames = 0;
    again[used - 1] ^= 1;
    if (rdv_frame_authentic(&other, again, used)) {
        abort();
    }
    free(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t at = 0;
    while (at < size) {
        rdv_frame frame;
        size_t used = 0;
        /* A copy of exactly the bytes there are: a read beyond them is seen. */
        uint8_t *copy = malloc(size - at);
        if (copy == NULL) {
            return 0;
        }
        memcpy(copy, data + at, size - at);
        const ds_status status = rdv_frame_parse(copy, size - at, 4096, &frame, &used);
        if (status == DS_OK) {
            if (used > size - at || frame.key_bytes > DSI_RDV_KEY_BYTES ||
                frame.value_bytes > 4096) {
                abort();
            }
            check_again(&frame, copy, used);
            rdv_frame part;
            size_t part_used;
            if (rdv_frame_parse(copy, used - 1, 4096, &part, &part_used) != DS_IN_PROGRESS) {
                abort();
            }
        }
        free(copy);
        if (status != DS_OK) {
            return 0;
        }
        at += used;
    }
    return 0;
}
