/* SPDX-License-Identifier: Apache-2.0 */
/* How many rows a training job's data has, for the autotuner. */
#ifndef DSI_TOOLS_TUNE_ROWS_H
#define DSI_TOOLS_TUNE_ROWS_H

#include "common/train.h"

/* Rows of an epoch; 0: not known, as the data is large, cannot be opened (the job will say why), or
 * takes long. Opened in a child process: this one stays as it is. */
uint64_t tune_count_rows(const train_options *options, ds_model *model);

#endif
