/* SPDX-License-Identifier: Apache-2.0 */
/* Monotonic time. Never read by passes (LAW 1). */
#ifndef DSI_BASE_CLOCK_H
#define DSI_BASE_CLOCK_H

double dsi_clock_seconds(void); /* since an arbitrary start */

#endif
