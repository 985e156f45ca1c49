/* SPDX-License-Identifier: Apache-2.0 */
/* Adafactor's update of a tensor. Called by train_graph.c.
 *
 * The means of rows and columns of the squared gradient, which are small, are whole on every rank:
 * each gathers the gradient, makes the direction of all of it, and takes what it updates. So all
 * stages have the same bits. A vector has the mean of each element, in the cell of the rows.
 */
#ifndef DSI_COMPILE_ADAFACTOR_GRAPH_H
#define DSI_COMPILE_ADAFACTOR_GRAPH_H

#include "compile/train_graph_build.h"

/* The update by operands as dsi_train_read_update reads them; given[5] is exp_avg, DS_NONE without.
 */
ds_status dsi_adafactor_build_update(dsi_train_builder *b, ds_cell param, const ds_value *given);

#endif
