/* SPDX-License-Identifier: Apache-2.0 */
/* The schedules of Hugging Face's Trainer, for schedule.c, which knows DeepSpeed's. */
#ifndef DSI_OPTIM_SCHEDULE_TRAINER_H
#define DSI_OPTIM_SCHEDULE_TRAINER_H

#include <deepspeed/schedule.h>

/* The rate of the update after `step` others. p is of one of the Trainer's kinds and checked. */
double dsi_schedule_trainer_lr(const ds_schedule_params *p, double optimizer_lr, int64_t step);
ds_status dsi_schedule_trainer_check(ds_ctx *ctx, const ds_schedule_params *p);

/* ERR_CONFIG that names scheduler.params.`key`, unless it holds. */
ds_status dsi_schedule_need(ds_ctx *ctx, bool holds, const char *key, const char *expected,
                            double found);
/* Any number that a schedule may mean; beyond it, products of a few overflow. */
bool dsi_schedule_sane(double x);

#endif
