/* SPDX-License-Identifier: Apache-2.0 */
/* Where bytes lie. Without a device memory of its own, the device's is the host's. */
#ifndef DSI_BASE_RESIDENCY_H
#define DSI_BASE_RESIDENCY_H

typedef enum dsi_residency {
    DSI_RESIDENCY_DEVICE,
    DSI_RESIDENCY_HOST,
    DSI_RESIDENCY_DISK
} dsi_residency;

enum { DSI_RESIDENCY_COUNT = DSI_RESIDENCY_DISK + 1 };

#endif
