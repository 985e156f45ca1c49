/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of a call as one stream of elements, walked in pieces. */
#include "comm/shm_impl.h"

size_t shm_part_length(const dsi_comm_call *call, uint32_t part, uint32_t size)
{
    (void)size;
    return call->parts[part].count;
}

size_t shm_slice_length(const dsi_comm_call *call, uint32_t part, uint32_t size)
{
    return dsi_comm_slice(call->parts[part].count, size);
}

size_t shm_stream_length(const dsi_comm_call *call, uint32_t size, shm_length_fn length)
{
    size_t sum = 0;
    for (uint32_t i = 0; i < call->n_parts; ++i) {
        sum += length(call, i, size);
    }
    return sum;
}

/* The piece at `position`, which lies inside of the stream and not before the cursor; at most
 * `most` elements of one part. */
shm_segment shm_next_segment(const dsi_comm_call *call, uint32_t size, shm_length_fn length,
                             uint32_t *part, size_t *base, size_t position, size_t most)
{
    size_t n = length(call, *part, size);
    while (position - *base >= n) {
        *base += n;
        ++*part;
        n = length(call, *part, size);
    }
    const size_t offset = position - *base;
    return (shm_segment){*part, offset, n - offset < most ? n - offset : most};
}
