/* SPDX-License-Identifier: Apache-2.0 */
/* A place in the order of a plan: from the pass that overlaps, through the plan, to what simulates
 * it. A collective or swap that overlaps with computation is two steps: its START on its own
 * stream, which has its operands, and its WAIT on the computing stream, which waits for the event
 * behind the START and does nothing else. */
#ifndef DSI_IR_STEP_KIND_H
#define DSI_IR_STEP_KIND_H

typedef enum dsi_step_kind { DSI_STEP_RUN, DSI_STEP_START, DSI_STEP_WAIT } dsi_step_kind;

#endif
