/* SPDX-License-Identifier: Apache-2.0 */
/* How the shipped profiles that were measured (device_xeon.c, device_zen3.c, device_zen5.c) write
 * down a class's rate: of products the share of the peak and the sizes of half, of the others the
 * share of the memory's bandwidth. */
#ifndef DSI_COST_DEVICE_MEASURED_H
#define DSI_COST_DEVICE_MEASURED_H

#define PRODUCT(share, m, n, k)                                                                    \
    {                                                                                              \
        .compute = (share), .memory = 1.0, (m), (n), (k)                                           \
    }
#define MEMORY(share)                                                                              \
    {                                                                                              \
        .compute = 1.0, .memory = (share)                                                          \
    }

#endif
